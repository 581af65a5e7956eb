"""Verify: proof that a dataset is whole, unharmed, and what its manifest says.

Nothing of the job's own bookkeeping is believed: every file is read again, every sum is made again
from the shards and document tables. Optionally documents are tokenized again from the sources.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from fineshards.commands.compare_sources import compare_with_sources
from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.shards import npy
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.dataset import Dataset
from fineshards.shards.documents import DocumentPiece, DocumentTable
from fineshards.shards.job import JOB_NAME, Job
from fineshards.shards.layout import SPLITS, table_name
from fineshards.shards.manifest import MANIFEST_NAME, Manifest
from fineshards.shards.records import ShardRecord
from fineshards.shards.rejected import REJECTED_FOLDER, rejected_paths
from fineshards.storage.base import TEMPORARY, Storage, open_storage
from fineshards.storage.checksums import checksum_to_base64

# Tokens looked at at once.
_READ_TOKENS = 1 << 20
# Bytes asked for at once, where requests have a price.
_READ_AHEAD = 16 << 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome. problems: one sentence each. sampled: documents tokenized again."""

    ok: bool
    problems: list[str]
    shards: int
    tokens: int
    documents: int
    sampled: int


@dataclass(slots=True)
class _ShardFacts:
    """What a shard and its table turn out to hold.

    documents: that begin in the shard. by_file: tokens and documents begun, by source path.
    first, last: pieces of documents; None if the table cannot be read.
    """

    problems: list[str] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    by_file: dict[str, tuple[int, int]] = field(default_factory=dict)
    first: DocumentPiece | None = None
    last: DocumentPiece | None = None


def verify(dataset: str | os.PathLike[str], *, sample: float = 0.0) -> Verdict:
    """Checks a finished dataset against its manifest, and its own parts against each other.

    Args:
        dataset: Folder of the dataset, local or `gs://`.
        sample: Share of the documents, in percent (0 to 100), to tokenize again from the sources
            and compare.

    Returns:
        A Verdict: `ok`, and one sentence per problem in `problems`.

    Raises:
        OutputError: If there is no manifest to check the dataset by.
        UsageError: For a sample that is not a percentage.

    Example:
        >>> import fineshards
        >>> verdict = fineshards.verify(dataset_folder, sample=100)
        >>> verdict.ok, verdict.problems, verdict.sampled
        (True, [], 1063)
    """
    if not 0 <= sample <= 100:
        raise UsageError(f"--sample is a percentage from 0 to 100, got {sample}.")
    return _verify(Dataset.open(open_storage(os.fspath(dataset))), sample)


def _verify(dataset: Dataset, sample_percent: float) -> Verdict:
    storage = dataset.storage
    manifest = dataset.manifest
    problems = list(_check_folders(storage, manifest))
    problems += _check_records(storage, manifest)
    problems += manifest.contradictions()
    numbers = {file.path: number for number, file in enumerate(manifest.files)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts = list(
            pool.map(lambda at: _check_shard(dataset, at, numbers), range(len(manifest.shards)))
        )
    for shard_facts in facts:
        problems += shard_facts.problems
    problems += _check_seams(manifest.shards, facts, numbers)
    problems += _check_sums(manifest, facts)
    sampled = 0
    if sample_percent > 0 and not problems:
        sampled, differences = compare_with_sources(dataset, sample_percent)
        problems += differences
    return Verdict(
        ok=not problems,
        problems=problems,
        shards=len(facts),
        tokens=sum(shard_facts.tokens for shard_facts in facts),
        documents=sum(shard_facts.documents for shard_facts in facts),
        sampled=sampled,
    )


def describe_verdict(verdict: Verdict) -> str:
    """The outcome for a person."""
    lines = [f"  {problem}" for problem in verdict.problems]
    counts = (
        f"{verdict.shards:,} shards, {verdict.tokens:,} tokens, {verdict.documents:,} documents"
    )
    if verdict.sampled:
        counts += f", {verdict.sampled:,} of them tokenized again"
    if verdict.ok:
        return f"verified: {counts}"
    return "\n".join([f"NOT VERIFIED, {len(lines)} problems:", *lines, f"read: {counts}"])


def _check_folders(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """Everything is there and nothing else."""
    expected = {shard.name for shard in manifest.shards}
    expected |= {table_name(shard.name) for shard in manifest.shards}
    expected |= {MANIFEST_NAME, JOB_NAME, manifest.settings.tokenizer.file}
    found = {entry.name for folder in (*SPLITS, "metadata") for entry in storage.entries(folder)}
    rejected = {name for name in found if name.startswith(f"{REJECTED_FOLDER}/")}
    for name in sorted(expected - found):
        yield f"{name} is missing"
    for name in sorted(found - expected - rejected):
        yield f"{name} does not belong to the dataset"
    yield from _check_rejected(storage, manifest, rejected)
    # A job that was killed just after its manifest leaves its checkpoints, and unfinished files; a
    # job with --keep_checkpoints leaves them on purpose. Other jobs' checkpoints are not its own.
    ours = (f"{CHECKPOINTS}/{manifest.fingerprint}/", f"{TEMPORARY}/")
    for name in sorted(storage.names(f"{CHECKPOINTS}/")):
        if name not in ours:
            yield f"{name} does not belong to the dataset"
    # Shards would be read by prefix, so neighbours of the split folders count as well, and what is
    # no file among shards: folders, links that lead nowhere.
    for split in SPLITS:
        beside = {name for name in storage.names(split) if name != f"{split}/"}
        inside = set(storage.names(f"{split}/")) - found
        for name in sorted(beside | inside):
            yield f"{name} does not belong to the dataset; readers that list by prefix take it"


def _check_rejected(storage: Storage, manifest: Manifest, names: set[str]) -> Iterator[str]:
    """Every rejected row of the manifest is listed, and no other."""
    listed = dict.fromkeys((file.path for file in manifest.files), 0)
    for name in sorted(names):
        try:
            for path in rejected_paths(storage, name):
                listed[path] += 1
        except (ValueError, KeyError, TypeError) as error:
            yield f"{name} is not a list of rejected rows of this dataset's files ({error!r})"
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        if listed[file.path] != report.counts.rejected:
            yield (
                f"{REJECTED_FOLDER}/ lists {listed[file.path]} rows of {file.path}, the manifest "
                f"says {report.counts.rejected}"
            )


def _check_records(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """The files in `metadata/` tell of one job, and what they repeat agrees."""
    content = json.loads(storage.read(MANIFEST_NAME))
    derived = json.loads(json.dumps(manifest.to_json()))
    for key in sorted(content.keys() | derived.keys()):
        if content.get(key) != derived.get(key):
            yield f"{MANIFEST_NAME}: its {key!r} does not follow from its other numbers"
    job = Job(manifest.settings, manifest.files, manifest.origin)
    if job.fingerprint() != manifest.fingerprint:
        yield (
            f"{MANIFEST_NAME}: its fingerprint is {manifest.fingerprint}, its settings and files "
            f"give {job.fingerprint()}"
        )
    try:
        if Job.load(storage) not in (job, None):
            yield f"{JOB_NAME} tells of another job than {MANIFEST_NAME}"
    except OutputError as error:
        yield str(error)
    tokenizer = manifest.settings.tokenizer
    if storage.size(tokenizer.file) is not None:
        found = hashlib.sha256(storage.read(tokenizer.file)).hexdigest()
        if found != tokenizer.vocabulary_sha256:
            expected = tokenizer.vocabulary_sha256
            yield f"{tokenizer.file} has sha256 {found}, the manifest says {expected}"


def _check_shard(dataset: Dataset, position: int, numbers: dict[str, int]) -> _ShardFacts:
    shard, facts = dataset.manifest.shards[position], _ShardFacts()
    try:
        table = dataset.table(position)
        _check_table(shard, table, facts, numbers)
        _check_tokens(dataset, shard, table, facts)
    except FineshardsError as error:
        facts.problems.append(str(error))
    return facts


def _check_table(
    shard: ShardRecord, table: DocumentTable, facts: _ShardFacts, numbers: dict[str, int]
) -> None:
    """The table covers the shard without gap or overlap, in the order of stream and sources."""
    name = table_name(shard.name)
    if len(table) != shard.pieces:
        facts.problems.append(f"{name} has {len(table)} rows, the manifest says {shard.pieces}")
    if len(table) == 0:
        return
    ends = table.offset + table.length
    covers = table.offset[0] == 0 and ends[-1] == shard.tokens
    if not covers or np.any(table.offset[1:] != ends[:-1]) or np.any(table.length < 1):
        facts.problems.append(f"{name} does not cover the tokens 0 to {shard.tokens} exactly")
    if np.any(np.diff(table.document) != 1):
        facts.problems.append(f"{name}: the numbers of its documents are not consecutive")
    if np.any(table.start[1:] != 0) or table.start[0] < 0:
        facts.problems.append(f"{name}: a document begins in the middle of the shard without start")
    if table.document[0] != shard.first_document:
        facts.problems.append(
            f"{name} begins with document {table.document[0]}, the manifest says "
            f"{shard.first_document}"
        )
    if not table.follows_sources(numbers):
        facts.problems.append(f"{name}: its documents are not in the order of the source's rows")
    facts.by_file = table.sums_by_file()
    facts.first, facts.last = table.piece(0), table.piece(len(table) - 1)


def _check_tokens(
    dataset: Dataset, shard: ShardRecord, table: DocumentTable, facts: _ShardFacts
) -> None:
    """Size, header, checksum, ids, and an EOT where a document begins and nowhere else."""
    tokenizer = dataset.manifest.settings.tokenizer
    dtype = dataset.manifest.settings.token_dtype
    scanned: list[str] = []
    found = [np.empty(0, np.int64)]
    position = 0
    with dataset.storage.open(shard.name, _READ_AHEAD) as opened:
        size = opened.seek(0, os.SEEK_END)
        if size != shard.bytes:
            facts.problems.append(f"{shard.name} has {size} bytes, the manifest says {shard.bytes}")
        opened.seek(0)
        header = opened.read(npy.HEADER_BYTES)
        try:
            tokens = npy.parse_header(header, dtype)
        except ValueError as error:
            facts.problems.append(f"{shard.name} {error}")
            return
        whole = size == npy.file_bytes(tokens, dtype)
        checksum: int = google_crc32c.value(header)
        while content := opened.read(_READ_TOKENS * dtype.itemsize):
            checksum = google_crc32c.extend(checksum, content)
            if not whole:
                continue
            chunk = np.frombuffer(content, dtype)
            highest = int(chunk.max())
            if highest >= tokenizer.size:
                where = position + int(chunk.argmax())
                scanned.append(
                    f"{shard.name}, token {where}: id {highest} is not below the vocabulary's "
                    f"size {tokenizer.size}"
                )
            found.append(np.flatnonzero(chunk == tokenizer.eot) + position)
            position += len(chunk)
    if checksum_to_base64(checksum) != shard.crc32c:
        facts.problems.append(
            f"{shard.name} has crc32c {checksum_to_base64(checksum)}, expected {shard.crc32c}"
        )
    if tokens != shard.tokens:
        facts.problems.append(f"{shard.name}: header says {tokens} tokens, not {shard.tokens}")
    if not whole:
        return
    facts.problems += scanned
    eots = np.concatenate(found)
    begins = table.offset[table.start == 0]
    facts.tokens, facts.documents = tokens, len(eots)
    if len(eots) != shard.documents:
        facts.problems.append(
            f"{shard.name} has {len(eots)} EOT tokens for {shard.documents} documents"
        )
    if not np.array_equal(eots, begins):
        facts.problems.append(f"{shard.name}: its EOT tokens are not where its documents begin")


def _check_seams(
    shards: Iterable[ShardRecord], facts: list[_ShardFacts], numbers: dict[str, int]
) -> Iterator[str]:
    """Each shard goes on where the one before it ended, in the stream and in the sources."""
    before: DocumentPiece | None = None
    for shard, here in zip(shards, facts, strict=True):
        if here.first is None or here.last is None:
            return
        name, first = table_name(shard.name), here.first
        number, reached = (before.document, before.start + before.length) if before else (-1, 0)
        if (first.document, first.start) not in ((number, reached), (number + 1, 0)):
            yield (
                f"{name} begins with document {first.document} at its token {first.start}, but the "
                f"shard before ended in document {number} at its token {reached}"
            )
        elif before:
            was, now = ((numbers.get(piece.file, -1), piece.row) for piece in (before, first))
            if now <= was if first.start == 0 else (now, first.id) != (was, before.id):
                yield (
                    f"{name} begins with row {first.row} of {first.file}, but the shard before "
                    f"ended in row {before.row} of {before.file}"
                )
        before = here.last


def _check_sums(manifest: Manifest, facts: list[_ShardFacts]) -> Iterator[str]:
    """The sums over the shards are those of the manifest, file by file."""
    sums: dict[str, list[int]] = {file.path: [0, 0] for file in manifest.files}
    for shard_facts in facts:
        for path, (tokens_here, documents_here) in shard_facts.by_file.items():
            entry = sums.setdefault(path, [0, 0])
            entry[0] += tokens_here
            entry[1] += documents_here
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        found = tuple(sums.pop(file.path, (0, 0)))
        if found != (report.counts.tokens, report.counts.documents):
            yield (
                f"{file.path}: the document tables hold {found[0]} tokens in {found[1]} "
                f"documents, the manifest says {report.counts.tokens} in {report.counts.documents}"
            )
    for path in sums:
        yield f"the document tables name {path}, which is not in the manifest"
