"""`export.json`: what an export holds. Written last; a folder without it is not finished.

It depends on the dataset and the options alone, not on clock, host or paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fineshards.errors import OutputError
from fineshards.exports.stream import Read
from fineshards.shards.records import JSON_ERRORS, from_fields, to_fields
from fineshards.storage.base import Storage

EXPORT_NAME = "export.json"
_VERSION = 1


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
        return json.dumps(content).encode()

    @classmethod
    def parse(cls, content: bytes) -> PartRecord | None:
        """The inverse of `to_bytes`; None for a damaged record."""
        try:
            fields = json.loads(content)
            fields["files"] = tuple(from_fields(FileRecord, file) for file in fields["files"])
            fields["reads"] = tuple(from_fields(Read, read) for read in fields["reads"])
            return cls(**fields)
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
            tokens that were left out.
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
    files: tuple[FileRecord, ...]

    def to_json(self) -> dict[str, Any]:
        """The content of `export.json`."""
        return {
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

    def save(self, storage: Storage) -> None:
        """Writes `export.json`."""
        storage.write(EXPORT_NAME, json.dumps(self.to_json(), indent=1).encode() + b"\n")

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
            files = tuple(
                from_fields(FileRecord, {"link": None, **file}) for file in fields["files"]
            )
            kept = ("to", "fingerprint", "options", "dataset", "splits")
            found = cls(**{name: fields[name] for name in kept}, files=files)
            sound = found.to_json() == fields
        except JSON_ERRORS as error:
            sound, found = False, error  # type: ignore[assignment]
        if not sound:
            raise OutputError(
                f"{storage.path(EXPORT_NAME)} is damaged. Delete the folder and export again."
            )
        return found
