"""The parts of a file that is to be joined, with the objects that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Generic

from fineshards.errors import OutputError
from fineshards.storage.base import FileRange
from fineshards.storage.checksums import copy_with_checksum, crc32c
from fineshards.storage.objects import Found, ObjectStorage

# Bytes per request for a part, and the most bytes of an upload to keep in memory.
READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FoundPart(Generic[Found]):
    """A part and the object that holds it."""

    part: FileRange
    stored: Found

    @property
    def size(self) -> int:
        """Bytes of the part."""
        return self.part.stop - self.part.start

    @property
    def whole(self) -> bool:
        """Whether the part is the whole object."""
        return (self.part.start, self.part.stop) == (0, self.stored.size)


def find_parts(
    storage: ObjectStorage[Found], name: str, parts: Sequence[FileRange]
) -> list[FoundPart[Found]]:
    """The objects of a file's parts; raises OutputError if one is missing or too short."""
    return [FoundPart(part, _find(storage, name, part)) for part in parts]


def _find(storage: ObjectStorage[Found], name: str, part: FileRange) -> Found:
    stored = storage.find(part.name)
    if stored is None or stored.size < part.stop:
        state = "does not exist" if stored is None else f"has {stored.size} bytes"
        raise OutputError(
            f"{storage.path(part.name)} {state}, expected at least {part.stop} bytes for {name}. "
            "Someone changed the checkpoints folder; start again with --overwrite."
        )
    return stored


def check_unchanged(
    storage: ObjectStorage[Found], name: str, parts: Iterable[Found], version: str
) -> None:
    """Raises OutputError if one of the objects that a file is made of is another by now.

    version: what the store calls the attribute that tells.
    """
    for stored in parts:
        own_name = storage.name_of(stored)
        now = storage.find(own_name)
        before = getattr(stored, version.lower())
        if now is None or getattr(now, version.lower()) != before:
            state = f"its {version} is {getattr(now, version.lower())}" if now else "it is deleted"
            raise OutputError(
                f"{storage.path(own_name)} changed while {name} was composed from it: its "
                f"{version} was {before}, now {state}. Run again when no one else writes there."
            )


def write_parts(
    storage: ObjectStorage[Found],
    header: bytes,
    found: Sequence[FoundPart[Found]],
    target: BinaryIO,
) -> int:
    """Writes a header and parts; returns the checksum of all of it."""
    target.write(header)
    checksum = crc32c(header)
    for one in found:
        checksum = write_part(storage, one, one.size, target, checksum)
    return checksum


def write_part(
    storage: ObjectStorage[Found],
    one: FoundPart[Found],
    size: int,
    target: BinaryIO,
    checksum: int = 0,
) -> int:
    """Writes the first bytes of a part; returns the checksum. checksum: of what is before them."""
    source = storage.reader(one.stored).buffered(min(size, READ_BYTES))
    source.seek(one.part.start)
    return copy_with_checksum(source, size, target, checksum)
