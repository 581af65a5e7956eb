"""Verify: proof that a dataset is whole, unharmed, and what its manifest says.

Nothing of the job's own bookkeeping is believed: every file is read again, every sum is made again
from the shards and document tables. Optionally documents are tokenized again from the sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.resample import compare_with_sources
from shards import npy
from shards.assembly import file_crc32c
from shards.dataset import Dataset
from shards.documents import DocumentTable
from shards.errors import FineshardsError
from shards.job import JOB_NAME, VOCABULARY_NAME
from shards.layout import SPLITS, table_name
from shards.manifest import MANIFEST_NAME, Manifest
from shards.records import ShardRecord
from shards.storage import Storage

_READ_TOKENS = 1 << 20


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
    first, last: (document, start, length) of the first and the last piece; None if unreadable.
    """

    problems: list[str] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    by_file: dict[str, tuple[int, int]] = field(default_factory=dict)
    first: tuple[int, int, int] | None = None
    last: tuple[int, int, int] | None = None


def verify(storage: Storage, sample_percent: float = 0.0) -> Verdict:
    """Checks a dataset; raises OutputError only if there is no manifest to check it by."""
    dataset = Dataset.open(storage)
    manifest = dataset.manifest
    problems = list(_check_folders(storage, manifest))
    problems += manifest.contradictions()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts = list(pool.map(lambda at: _check_shard(dataset, at), range(len(manifest.shards))))
    for shard_facts in facts:
        problems += shard_facts.problems
    problems += _check_seams(manifest.shards, facts)
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
    expected |= {MANIFEST_NAME, JOB_NAME, VOCABULARY_NAME}
    found = {entry.name for folder in (*SPLITS, "metadata") for entry in storage.entries(folder)}
    rejected = {name for name in found if name.startswith("metadata/rejected/")}
    for name in sorted(expected - found):
        yield f"{name} is missing"
    for name in sorted(found - expected - rejected):
        yield f"{name} does not belong to the dataset"
    if bool(rejected) != bool(manifest.totals()["rejected"]):
        yield f"metadata/rejected/ holds {len(rejected)} files, but the manifest's count of "
        f"rejected rows is {manifest.totals()['rejected']}"
    # Shards would be read by prefix, so neighbours of the split folders count as well.
    for name in sorted(os.listdir(storage.root)):
        if name.startswith(SPLITS) and name not in SPLITS:
            yield f"{name} does not belong to the dataset; readers that list by prefix take it"


def _check_shard(dataset: Dataset, position: int) -> _ShardFacts:
    shard, facts = dataset.manifest.shards[position], _ShardFacts()
    try:
        table = dataset.table(position)
        _check_table(shard, table, facts)
        _check_tokens(dataset, shard, table, facts)
    except FineshardsError as error:
        facts.problems.append(str(error))
    return facts


def _check_table(shard: ShardRecord, table: DocumentTable, facts: _ShardFacts) -> None:
    """The table covers the shard without gap or overlap, in the order of the stream."""
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
    facts.by_file = table.sums_by_file()
    facts.first = (int(table.document[0]), int(table.start[0]), int(table.length[0]))
    facts.last = (int(table.document[-1]), int(table.start[-1]), int(table.length[-1]))


def _check_tokens(
    dataset: Dataset, shard: ShardRecord, table: DocumentTable, facts: _ShardFacts
) -> None:
    """Size, header, checksum, ids, and an EOT where a document begins and nowhere else."""
    tokenizer = dataset.manifest.settings.tokenizer
    size = dataset.storage.size(shard.name)
    if size != shard.bytes:
        facts.problems.append(f"{shard.name} has {size} bytes, the manifest says {shard.bytes}")
    with dataset.storage.open(shard.name) as opened:
        try:
            tokens = npy.parse_header(opened.read(npy.HEADER_BYTES))
        except ValueError as error:
            facts.problems.append(f"{shard.name} {error}")
            return
        opened.seek(0)
        checksum = file_crc32c(opened)
    if checksum != shard.crc32c:
        facts.problems.append(f"{shard.name} has crc32c {checksum}, expected {shard.crc32c}")
    if tokens != shard.tokens:
        facts.problems.append(f"{shard.name}: header says {tokens} tokens, not {shard.tokens}")
    if size != npy.file_bytes(tokens):
        return
    begins = table.offset[table.start == 0]
    position = 0
    found: list[npt.NDArray[np.int64]] = []
    while position < tokens:
        stop = min(position + _READ_TOKENS, tokens)
        chunk = dataset.tokens(shard, position, stop)
        highest = int(chunk.max())
        if highest >= tokenizer.size:
            where = position + int(chunk.argmax())
            facts.problems.append(
                f"{shard.name}, token {where}: id {highest} is not below the vocabulary's size "
                f"{tokenizer.size}"
            )
        found.append(np.flatnonzero(chunk == tokenizer.eot) + position)
        position = stop
    eots = np.concatenate(found)
    facts.tokens, facts.documents = tokens, len(eots)
    if len(eots) != shard.documents:
        facts.problems.append(
            f"{shard.name} has {len(eots)} EOT tokens for {shard.documents} documents"
        )
    if not np.array_equal(eots, begins):
        facts.problems.append(f"{shard.name}: its EOT tokens are not where its documents begin")


def _check_seams(shards: Iterable[ShardRecord], facts: list[_ShardFacts]) -> Iterator[str]:
    """Each shard goes on where the one before it ended."""
    number, reached = 0, 0  # the document that the next shard goes on with, and how far it is
    for shard, here in zip(shards, facts, strict=True):
        if here.first is None or here.last is None:
            return
        document, start, _ = here.first
        goes_on = (document, start) == (number, reached)
        begins_next = (document, start) == (number + (reached > 0), 0)
        if not (goes_on or begins_next):
            yield (
                f"{table_name(shard.name)} begins with document {document} at its token {start}, "
                f"but the shard before ended in document {number} at its token {reached}"
            )
        number, last_start, length = here.last
        reached = last_start + length


def _check_sums(manifest: Manifest, facts: list[_ShardFacts]) -> Iterator[str]:
    """The sums over the shards are those of the manifest, file by file."""
    sums: dict[str, list[int]] = {file.path: [0, 0] for file in manifest.files}
    for shard_facts in facts:
        for path, (tokens_here, documents_here) in shard_facts.by_file.items():
            entry = sums.setdefault(path, [0, 0])
            entry[0] += tokens_here
            entry[1] += documents_here
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        found = tuple(sums.pop(file.path))
        if found != (report.tokens, report.documents):
            yield (
                f"{file.path}: the document tables hold {found[0]} tokens in {found[1]} "
                f"documents, the manifest says {report.tokens} in {report.documents}"
            )
    for path in sums:
        yield f"the document tables name {path}, which is not in the manifest"
