"""`export.json`: what an export holds. Written last; a folder without it is not finished.

It depends on the dataset and the options alone, not on clock, host or paths. Its last line but one
is its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NotRequired, TypedDict

from msgspec import field

from fineshards.exports.stream import Read
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.shards.record import Count, Crc32c, Record, RecordFile
from fineshards.storage.base import Storage, is_below, shortened


class SplitCounts(TypedDict):
    """Totals of a split in an export. documents: None where the format counts none."""

    parts: Count
    documents: Count | None
    tokens: Count
    left_out: Count
    skipped: NotRequired[dict[str, Count]]


class FileRecord(Record, frozen=True):
    """A file of an export.

    Args:
        name: Path below the export's folder.
        bytes: Size in bytes.
        crc32c: CRC-32C of the whole file, as Cloud Storage writes it.

    Example:
        >>> import fineshards
        >>> export = fineshards.export(dataset_folder, f"{folder}-copy", to="megatron")
        >>> export.files[0].name, export.files[0].bytes
        ('test_0000.bin', 399996)
    """

    name: str
    bytes: Count
    crc32c: Crc32c

    def __post_init__(self) -> None:
        # A file of this name is opened, and may be deleted, so the name must stay in the folder.
        if not is_below(self.name) or self.name == EXPORT_NAME:
            raise ValueError(f"it names {shortened(self.name)}, which is not a file of an export")


class PartRecord(Record, frozen=True):
    """A finished part.

    split, index: which part. documents: those with tokens in it; None where the format knows none.
    tokens: those in its files. left_out: tokens that the format has no room for. files: what was
    written. reads: what was read of each shard. facts: what the format's index needs.
    """

    split: str
    index: Count
    documents: Count | None
    tokens: Count
    left_out: Count
    files: tuple[FileRecord, ...]
    reads: tuple[Read, ...]
    facts: dict[str, Any] = field(default_factory=dict)


def digest_of(parts: Sequence[PartRecord]) -> str:
    """A name for the content of all files of some parts: 16 hexadecimal digits."""
    checksums = [file.crc32c for part in parts for file in part.files]
    return sha256(json.dumps(checksums).encode()).hexdigest()[:16]


class Export(RecordFile, frozen=True, tag_field="format", tag="fineshards export 3"):
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

    IF_DAMAGED = IF_OTHER_VERSION = "Delete the folder and export again."

    to: str
    fingerprint: str
    options: dict[str, Any]
    dataset: dict[str, Any]
    splits: dict[str, SplitCounts]
    files: tuple[FileRecord, ...]

    def __post_init__(self) -> None:
        if len({file.name for file in self.files}) < len(self.files):
            raise ValueError("it names a file twice")

    def __repr__(self) -> str:
        # Without the files, of which there are one or more per shard.
        return f"Export({self.to!r}, {self.fingerprint[:12]!r}): {len(self.files):,} files"

    def save(self, storage: Storage) -> None:
        """Writes `export.json`."""
        storage.write(EXPORT_NAME, self.to_bytes())

    @classmethod
    def load(cls, storage: Storage) -> Export | None:
        """Reads `export.json`; None if there is none, and OutputError for another content."""
        stored = storage.read_if_there(EXPORT_NAME)
        return None if stored is None else cls.parse(stored, storage.path(EXPORT_NAME))
