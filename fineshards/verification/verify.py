"""Verify: proof that a dataset is complete, undamaged, and what its manifest says.

None of the job's own bookkeeping is trusted: every file is read once and compared with its size and
checksum in the manifest, and every total is recomputed from the shards and document tables.
Optionally, documents are tokenized again and compared with their sources.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fineshards.cores import usable_cores
from fineshards.errors import OutputError, UsageError
from fineshards.exports.record import Export, FileRecord
from fineshards.publishing import sums
from fineshards.publishing.sums import SUMS_NAME
from fineshards.shards.counts import Sums
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import Job, job_name
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import (
    EXPORT_NAME,
    MANIFEST_NAME,
    forgotten,
    no_generation,
    unfinished,
)
from fineshards.shards.job.source_counts import sums_by_stream
from fineshards.shards.readable import readable_manifest, unfinished_redaction
from fineshards.shards.tables.shared_texts import Comparison, SharedTexts, compare_range
from fineshards.sources.roots import with_sources
from fineshards.storage.base import READ_AHEAD, Storage
from fineshards.storage.checksums import checksum_to_base64, file_checksum
from fineshards.storage.open import open_storage
from fineshards.verification.check_decisions import DroppedRows, check_decisions, check_scores
from fineshards.verification.check_folders import Folders
from fineshards.verification.check_metadata import (
    check_manifest,
    check_metadata,
    check_statistics,
)
from fineshards.verification.check_published import check_published
from fineshards.verification.check_shards import (
    check_borders,
    check_redactions,
    check_shard,
    check_totals,
)
from fineshards.verification.compare_sources import Compared, compare_with_sources
from fineshards.wording import counted, describe_leaks
from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter
from fineshards.worker.own_process import is_alone


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `verify`.

    Args:
        ok: Whether the dataset has no problem.
        problems: One sentence per problem.
        shards: Shards that the manifest lists.
        tokens: Tokens found in the shards.
        documents: Documents found in the shards.
        sampled: Documents that were compared with their sources.
        judged: Documents that a recipe dropped or cut, and that were judged again.
        files: Files of an export, whose tokens and documents are those that it was written with.
        hashed: Files that were compared with `SHA256SUMS`.

    Example:
        >>> import fineshards
        >>> verdict = fineshards.verify(dataset_folder)
        >>> verdict.shards, verdict.tokens, verdict.documents, verdict.sampled
        (7, 665971, 1063, 0)
    """

    ok: bool
    problems: list[str]
    shards: int
    tokens: int
    documents: int
    sampled: int
    judged: int = 0
    files: int = 0
    hashed: int = 0

    def __bool__(self) -> bool:
        return self.ok


def verify(
    folder: str | os.PathLike[str],
    *,
    sample: float | str = 0.0,
    generation: int | None = None,
    sha256: bool = False,
    dataset: str | os.PathLike[str] | None = None,
    sources: Sequence[str] = (),
) -> Verdict:
    """Checks every file of a finished dataset or export, and returns all problems found.

    Args:
        folder: The folder of the dataset or of the export, local, `gs://` or `s3://`.
        sample: What to tokenize again from its sources and compare: a share of the documents,
            such as "1%", or about a number of them, such as 1000. 100 means all; smaller numbers
            are refused. At least one document, unless it is 0. With a recipe the same share of what
            it dropped is judged again. Default: 0, none.
        generation: The generation to check, from 1, of a dataset that has grown. Default: the
            latest, which includes the others.
        sha256: Whether to read every file once more and compare its SHA-256 with that in
            `SHA256SUMS`, which `publish` writes.
        dataset: Of an export, the folder of the dataset that it was made of: then documents that
            were redacted since are a problem. Default: where the links of an export lead.
        sources: Where the source files are now, for `sample`: each is `OLD=NEW`, and what was in
            the folder OLD is in NEW. Their size is that of then; their content is compared.

    Returns:
        A Verdict. `ok` is True if there are no problems; `problems` has one sentence per problem.

    Raises:
        OutputError: If the folder has no readable manifest to check the dataset against, or if
            there is no such generation.
        UsageError: If sample is neither a share nor a number, or if there are no SHA-256 sums to
            compare with.

    Example:
        >>> import fineshards
        >>> verdict = fineshards.verify(dataset_folder, sample="100%")
        >>> verdict.ok, verdict.problems, verdict.sampled
        (True, [], 1063)
    """
    share = _Sample.of(sample)
    if sources and share is None:
        raise UsageError("--sources goes with --sample, which reads the source files.")
    storage = open_storage(folder)
    export = Export.load(storage) if storage.size(MANIFEST_NAME) is None else None
    if export is not None:
        if share or sha256 or generation is not None:
            raise UsageError(
                f"{storage.root} is an export: --sample, --sha256 and --generation go with "
                "datasets."
            )
        return _verify_export(storage, export, dataset)
    if dataset is not None:
        raise UsageError(
            f"--dataset goes with the folder of an export, and {storage.root} is not one. Leave it "
            "out."
        )
    if sha256 and generation is not None:
        raise UsageError(f"--sha256: {SUMS_NAME} is of the latest generation. Leave one out.")
    while True:
        state = _state(storage)
        verdict = _verify(storage, *state, share, generation, sha256, sources)
        # What an append did meanwhile may look like damage.
        if verdict.ok or _state(storage) == state:
            return verdict


@dataclass(frozen=True, slots=True)
class _Sample:
    """How many documents are compared: a percentage, or a number; the other is None."""

    percent: float | None
    documents: float | None = None

    @classmethod
    def of(cls, sample: float | str) -> _Sample | None:
        """What the argument of `verify` means; None for no documents."""
        share = isinstance(sample, str) and sample.endswith("%")
        try:
            number = float(str(sample).removesuffix("%"))
        except ValueError:
            number = -1
        if not 0 <= number < math.inf or (share and number > 100):
            raise UsageError(
                f"--sample is a share such as 1%, or a number of documents such as 1000, got "
                f"{sample}."
            )
        if not number:
            return None
        if not share and number < 100:
            raise UsageError(
                f"--sample {sample}: write a share as text, such as '1%' or '100%'. A number of "
                "documents is larger than 100."
            )
        return cls(number) if share or number <= 100 else cls(None, number)

    def percent_of(self, documents: int) -> float:
        """The percentage of a number of documents."""
        if self.documents is None:
            return self.percent or 0.0
        return min(100.0, 100 * self.documents / max(documents, 1))


def _verify_export(
    storage: Storage, export: Export, dataset: str | os.PathLike[str] | None
) -> Verdict:
    problems = list(check_export(storage, export))
    known = linked_dataset(storage, export) if dataset is None else open_storage(dataset)
    problems += check_dataset(export, known) if known else []
    tokens = sum(counts["tokens"] for counts in export.splits.values())
    documents = sum(counts["documents"] or 0 for counts in export.splits.values())
    return Verdict(not problems, problems, 0, tokens, documents, 0, files=len(export.files))


def _state(storage: Storage) -> tuple[bytes, bytes | None]:
    """The manifest, and the job record of the generation after it, if there is one already."""
    stored = storage.read_if_there(MANIFEST_NAME)
    if stored is None:
        raise OutputError(unfinished(storage))
    latest = Manifest.parse(stored, storage.path(MANIFEST_NAME))
    return stored, storage.read_if_there(job_name(latest.generation + 1))


def _verify(
    storage: Storage,
    stored: bytes,
    record: bytes | None,
    sample: _Sample | None,
    generation: int | None,
    sha256: bool,
    sources: Sequence[str],
) -> Verdict:
    latest = Manifest.parse(stored, storage.path(MANIFEST_NAME))
    if problem := forgotten(storage, latest.generation, stored):
        raise OutputError(problem)
    if generation is not None and not 1 <= generation <= latest.generation:
        raise OutputError(no_generation(storage, generation, latest.generation))
    if sha256 and storage.size(SUMS_NAME) is None:
        raise UsageError(
            f"--sha256: {storage.path(SUMS_NAME)} is missing. Write it with fineshards publish."
        )
    problems: list[str] = []
    following = None
    if record is not None:
        try:
            following = Job.parse(record, storage.path(job_name(latest.generation + 1)))
        except OutputError as error:
            problems.append(str(error))
    if problem := unfinished_redaction(storage, following):
        return Verdict(False, [problem], len(latest.shards), 0, 0, 0)
    folders = Folders(storage, latest, following)
    problems += folders.problems()
    problems += check_manifest(latest, stored)
    problems += check_metadata(storage, latest, folders)
    manifest = latest
    if generation not in (None, latest.generation) and not problems:
        manifest = Manifest.load_finished(storage, generation)
    dataset = Dataset(storage, manifest)
    # Damaged decisions and scores would be named again, for each thing that is wrong in them.
    if not problems:
        problems += [*check_decisions(dataset), *check_scores(dataset)]
        problems += check_statistics(storage, manifest)
    dropped = DroppedRows(dataset) if manifest.settings.recipe else None
    now = {shard.name: shard for shard in latest.shards}
    file_numbers = {file.name: number for number, file in enumerate(manifest.files)}
    with ThreadPoolExecutor(usable_cores()) as pool:
        found = list(
            pool.map(
                lambda shard: check_shard(
                    dataset,
                    shard,
                    folders.files,
                    file_numbers,
                    now.get(shard.name),
                    dropped,
                ),
                manifest.shards,
            )
        )
    for contents in found:
        problems += contents.problems
    problems += check_borders(manifest, found, file_numbers)
    problems += check_totals(manifest, found)
    problems += check_redactions(manifest, found)
    if not problems and following is None and manifest is latest:
        problems += _check_shared_texts(storage, manifest)
        problems += check_published(storage, manifest, sha256)
    compared = Compared()
    if sample and not problems:
        documents = manifest.totals()["documents"]
        moved = with_sources(manifest, sources)
        compared = _compare(storage, moved, sample.percent_of(documents))
        problems += compared.problems
    return Verdict(
        ok=not problems,
        problems=problems,
        shards=len(found),
        tokens=sum(contents.tokens for contents in found),
        documents=sum(contents.documents for contents in found),
        sampled=compared.documents,
        judged=compared.judged,
        hashed=len(sums.contents(manifest)) if sha256 and not problems else 0,
    )


def _check_shared_texts(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """The manifest counts as many leaks and repeats as the document tables have."""
    if manifest.leaks is None and manifest.repeats is None:
        return
    rule = manifest.settings.split
    before: tuple[Sums, ...] = ()
    if manifest.repeats is not None:
        # Before the latest generation that added files.
        files = [generation.files for generation in manifest.generations if generation.files]
        before = sums_by_stream(manifest.reports[: sum(files[:-1])], rule)
    comparison = Comparison.of(manifest.shards, before, rule)
    found = SharedTexts.total(
        [
            compare_range(storage, rule, comparison, number, usable_cores())
            for number in range(comparison.ranges)
        ]
    )
    if manifest.leaks not in (None, found.leaks):
        yield (
            f"by text_hash in the document tables {describe_leaks(found.leaks)}; {MANIFEST_NAME} "
            f"says {manifest.leaks.test_documents:,} and {manifest.leaks.train_documents:,}"
        )
    if manifest.repeats not in (None, found.repeats):
        yield (
            f"by the hashes in the document tables {counted(found.repeats, 'new document')} repeat "
            f"earlier ones; {MANIFEST_NAME} says {manifest.repeats:,}"
        )


def _compare(storage: Storage, manifest: Manifest, percent: float) -> Compared:
    """Compares with the sources, by functions of the user's own as their files are now."""
    steps = manifest.settings.recipe.steps if manifest.settings.recipe else ()
    if not is_alone() and any(":" in name for step in steps for name, _ in step.pins):
        return call_in_fresh_interpreter(_compare_here, storage, manifest, percent)
    return _compare_here(storage, manifest, percent)


def _compare_here(storage: Storage, manifest: Manifest, percent: float) -> Compared:
    return compare_with_sources(Dataset(storage, manifest), percent)


def describe_verdict(verdict: Verdict) -> list[str]:
    """The outcome in a few lines: the counts, and every problem."""
    of = counted(verdict.files, "file") if verdict.files else counted(verdict.shards, "shard")
    counts = f"{of}, {counted(verdict.tokens, 'token')}"
    if verdict.documents or not verdict.files:
        counts += f", {counted(verdict.documents, 'document')}"
    if verdict.sampled:
        share = 100 * verdict.sampled / max(verdict.documents, 1)
        counts += (
            f"; {verdict.sampled:,} of {counted(verdict.documents, 'document')} ({share:.3g} %) "
            "compared with their sources"
        )
    if verdict.judged:
        counts += f"; {counted(verdict.judged, 'dropped document')} judged again"
    if verdict.hashed:
        counts += f"; {counted(verdict.hashed, 'file')} compared with {SUMS_NAME}"
    if verdict.ok:
        return [f"verified: {counts}"]
    return [
        f"NOT VERIFIED: {counted(len(verdict.problems), 'problem')}",
        *(f"  {problem}" for problem in verdict.problems),
        f"read: {counts}",
    ]


def check_export(storage: Storage, export: Export) -> Iterator[str]:
    """One sentence per file that is missing, damaged, or not of the export."""
    expected = {file.name for file in export.files} | {EXPORT_NAME}
    for entry in sorted(storage.entries(""), key=lambda entry: entry.name):
        if entry.name not in expected:
            yield (
                f"{entry.name} is not a file of the export, and readers take every file of a "
                "folder. Move it away."
            )
    with ThreadPoolExecutor(usable_cores()) as pool:
        for problem in pool.map(lambda file: _problem(storage, file), export.files):
            if problem:
                yield problem


def linked_dataset(storage: Storage, export: Export) -> Storage | None:
    """The folder of the dataset whose shards an export links to; None if there are no links."""
    for file in export.files if storage.supports_mmap else ():
        if file.link:
            target = os.path.realpath(storage.path(file.name))
            found = open_storage(target.removesuffix(f"/{file.link}"))
            if found.size(MANIFEST_NAME) is not None:
                return found
    return None


def check_dataset(export: Export, dataset: Storage) -> Iterator[str]:
    """One sentence if an export is not of a dataset, or if that was redacted since."""
    fingerprint, generation = map(export.dataset.get, ("fingerprint", "generation"))
    try:
        latest = readable_manifest(dataset)
    except OutputError as error:
        yield str(error)
        return
    known = type(generation) is int and 1 <= generation <= latest.generation
    if not known or Manifest.load_finished(dataset, generation).fingerprint != fingerprint:
        yield (
            f"the export is not of {dataset.root}: it is of generation {generation} of the dataset "
            f"with the fingerprint {fingerprint}. Name that dataset."
        )
    elif redacted := sum(each.redacted for each in latest.generations[generation:]):
        linked = any(file.link for file in export.files)
        state = "are of the state before" if linked else "still have them"
        yield (
            f"{counted(redacted, 'document')} of {dataset.root} were redacted since generation "
            f"{generation} was exported, and these files {state}. Delete them, and export the "
            "dataset again."
        )


def _problem(storage: Storage, file: FileRecord) -> str:
    where = f"{file.name} (a link to the dataset's {file.link})" if file.link else file.name
    size = storage.size(file.name)
    if size is None:
        return f"{where} is missing. {_advice(file)}"
    if size != file.bytes:
        return f"{where} has {size:,} bytes, expected {file.bytes:,}. {_advice(file)}"
    try:
        with storage.open(file.name, READ_AHEAD) as opened:
            found = checksum_to_base64(file_checksum(opened))
    except OutputError as error:
        return str(error)
    if found != file.crc32c:
        return f"{where} has crc32c {found}, expected {file.crc32c}. {_advice(file)}"
    return ""


def _advice(file: FileRecord) -> str:
    if file.link:
        return "If the dataset was redacted since, export it into another folder."
    return "Delete it, and run the same export again."
