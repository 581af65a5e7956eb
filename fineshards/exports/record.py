"""`export.json`: what an export holds. Written last; a folder without it is not finished.

It depends on the dataset and the options alone, not on clock, host or paths. Its last line but one
is its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fineshards.errors import OutputError, clipped
from fineshards.exports.stream import Read
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.shards.job.records import JSON_ERRORS, as_text, from_fields, to_fields
from fineshards.shards.job.seal import sealed
from fineshards.storage.base import Storage
from fineshards.storage.names import is_below, shortened

_VERSION = 2


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of an export.

    Args:
        name: Path below the export's folder.
        bytes: Size in bytes.
        crc32c: CRC-32C of the whole file, as Cloud Storage writes it.
        link: The shard of the dataset that the file is a link to; None for a file.

    Example:
        >>> import fineshards
        >>> export = fineshards.export(dataset_folder, f"{folder}-linked", to="megatron", link=True)
        >>> export.files[0].name, export.files[0].link
        ('test_0000.bin', 'test/test_0000.npy')
    """

    name: str
    bytes: int
    crc32c: str
    link: str | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> FileRecord:
        """The record from JSON; raises one of JSON_ERRORS for other content.

        A file of this name is opened, and may be deleted, so the name must stay in the folder.
        """
        found = from_fields(cls, {"link": None, **fields})
        if not is_below(found.name) or found.name == EXPORT_NAME:
            raise ValueError(f"it names {shortened(found.name)}, which is no file of an export")
        return found


@dataclass(frozen=True, slots=True)
class _SplitCounts:
    """What `export.json` has of each split."""

    parts: int
    documents: int | None
    tokens: int
    left_out: int


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A finished part.

    split, index: which part. documents: those with tokens in it; None where the format knows none.
    tokens: those in its files. left_out: tokens that the format has no room for. files: what was
    written. reads: what was read of each shard. facts: what the format's index needs.
    """

    split: str
    index: int
    documents: int | None
    tokens: int
    left_out: int
    files: tuple[FileRecord, ...]
    reads: tuple[Read, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The record as JSON."""
        content = to_fields(self)
        content["files"] = [to_fields(file) for file in self.files]
        content["reads"] = [to_fields(read) for read in self.reads]
        return sealed(content)

    @classmethod
    def parse(cls, content: bytes) -> PartRecord | None:
        """The inverse of `to_bytes`; None for a damaged record."""
        try:
            fields = json.loads(content)
            found = from_fields(
                cls,
                fields,
                files=tuple(FileRecord.from_json(file) for file in fields["files"]),
                reads=tuple(from_fields(Read, read) for read in fields["reads"]),
            )
            return found if found.to_bytes() == content else None
        except JSON_ERRORS:
            return None


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export.

    Args:
        to: Format, such as `megatron`.
        fingerprint: SHA-256, as hex, of all that decides the bytes.
        options: The options in effect, by name.
        dataset: What was exported: fingerprint and generation.
        splits: For each split: parts, documents (None where the format counts none), tokens, and
            tokens that were left out; and with `skip` the redacted documents and tokens that were.
        files: The files, by name.

    Example:
        >>> import fineshards
        >>> export = fineshards.export(dataset_folder, f"{folder}-raw", to="raw")
        >>> export.splits["train"]["tokens"], [file.name for file in export.files]
        (565971, ['train.bin', 'val.bin'])
    """

    to: str
    fingerprint: str
    options: dict[str, Any]
    dataset: dict[str, Any]
    splits: dict[str, dict[str, Any]]
    files: tuple[FileRecord, ...] = field(repr=False)  # one or more per shard

    def to_bytes(self) -> bytes:
        """The content of `export.json`."""
        content = {
            "format": "fineshards-export",
            "version": _VERSION,
            "to": self.to,
            "fingerprint": self.fingerprint,
            "options": self.options,
            "dataset": self.dataset,
            "splits": self.splits,
            "files": [
                {name: value for name, value in to_fields(file).items() if value is not None}
                for file in self.files
            ],
        }
        return sealed(content) + b"\n"

    def save(self, storage: Storage) -> None:
        """Writes `export.json`."""
        storage.write(EXPORT_NAME, self.to_bytes())

    @classmethod
    def load(cls, storage: Storage) -> Export | None:
        """Reads `export.json`; None if there is none, and OutputError for another content."""
        stored = storage.read_if_there(EXPORT_NAME)
        if stored is None:
            return None
        try:
            fields = json.loads(stored)
            if (fields["format"], fields["version"]) != ("fineshards-export", _VERSION):
                raise ValueError("it is of another version")
            for counts in fields["splits"].values():
                from_fields(_SplitCounts, counts)
            found = cls(
                to=as_text(fields["to"]),
                fingerprint=as_text(fields["fingerprint"]),
                options=dict(fields["options"]),
                dataset=dict(fields["dataset"]),
                splits=fields["splits"],
                files=tuple(FileRecord.from_json(file) for file in fields["files"]),
            )
            if found.to_bytes() != stored:
                raise ValueError("its content is not what its checksum says")
            if len({file.name for file in found.files}) < len(found.files):
                raise ValueError("it names a file twice")
        except JSON_ERRORS as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise OutputError(
                f"{storage.path(EXPORT_NAME)} is damaged: {clipped(str(why))}. Delete the folder "
                "and export again."
            ) from error
        return found
