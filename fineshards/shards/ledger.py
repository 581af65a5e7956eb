"""The ledger of a job, or of an export: which pieces of work are finished, and what they made.

    blocks/00003-00012.json    the entry of the kind `blocks` with the key 00003-00012

An entry is written after all that the work made. It has the checksum of each of these ranges of
files, and what later steps must know. Work without an entry is done again. One that is damaged, or
has a damaged range, is none, and is named in the log: neither is flushed to the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, TypeVar

from msgspec import MsgspecError, json

from fineshards.errors import OutputError
from fineshards.shards.record import Count, Record, seal_holds, sealed, unsealed
from fineshards.storage.base import READ_AHEAD, Entry, Storage, is_below

_log = logging.getLogger("fineshards")

Found = TypeVar("Found")

# Source files whose entries are listed together in a large job.
NUMBERS_IN_A_PART = 100
# How the names of entries end.
ENTRY = "json"


class Range(Record, frozen=True):
    """Bytes `[start, stop)` of a file, and their CRC-32C.

    Ranges of an entry that begin with a file's first byte are all of the file. Others are a part of
    one that others write, too.
    """

    file: str
    start: Count
    stop: Count
    crc32c: Count

    def __post_init__(self) -> None:
        if not is_below(self.file):
            raise ValueError("it leads out of the folder")

    @classmethod
    def whole(cls, file: str, size: int, checksum: str) -> Range:
        """A whole file, with its CRC-32C in base64."""
        from fineshards.storage.checksums import checksum_from_base64  # loading lacks it

        return cls(file, 0, size, checksum_from_base64(checksum))


@dataclass(frozen=True, slots=True)
class Kind(Generic[Found]):
    """A kind of work. name: of the folder of its entries, if any. record: the type of theirs."""

    name: str
    record: type[Found]


class Finished(Record, Generic[Found], frozen=True):
    """An entry: which work it is of, and what that made and found."""

    kind: str
    key: str
    ranges: tuple[Range, ...]
    record: Found


class Ledger:
    """The entries in a folder of checkpoints."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def put(
        self,
        kind: Kind[Found],
        key: str,
        ranges: Iterable[Range],
        record: Found,
        durable: bool = False,
    ) -> None:
        """Says that work is finished: its ranges are there. durable: a power cut leaves it."""
        name = self.name(kind, key)
        entry = sealed(json.encode(Finished(kind.name, key, tuple(ranges), record)))
        try:
            self._storage.write(name, entry, durable)
        except OutputError:
            # A store replaces nothing by itself: a damaged entry in this version, read after it.
            damaged, stored = self._storage.version(name), self._storage.read_if_there(name)
            if stored is None or (stored != entry and _parsed(kind, key, stored) is not None):
                raise
            self._storage.replace(name, entry, damaged)

    def get(self, kind: Kind[Found], key: str) -> Found | None:
        """The record of finished work; None if its entry, or a range, is missing or damaged."""
        entry = self.read(kind, key)
        return entry.record if entry is not None and self.holds(entry.ranges) else None

    def read(self, kind: Kind[Found], key: str) -> Finished[Found] | None:
        """An entry, whatever its ranges are now; None if it is missing or damaged."""
        stored = self._storage.read_if_there(self.name(kind, key))
        entry = None if stored is None else _parsed(kind, key, stored)
        if entry is None and stored is not None:
            _say_damaged(self._storage.path(self.name(kind, key)))
        return entry

    def finished(self, kind: Kind[Found], key: str) -> Finished[Found]:
        """As `read`, of work that this job has finished: raises OutputError if there is none."""
        entry = self.read(kind, key)
        if entry is None:
            raise OutputError(
                f"{self._storage.path(self.name(kind, key))} is missing or damaged: someone "
                "changed the folder while the job ran. Run the same command again to resume."
            )
        return entry

    def holds(self, ranges: Iterable[Range]) -> bool:
        """Whether ranges, all that an entry has of a file, are there and undamaged.

        A disk is read. A store verifies what it has, and says the checksum of a whole file.
        """
        ordered = sorted(ranges, key=attrgetter("file", "start", "stop"))
        by_file = groupby(ordered, attrgetter("file"))
        return all(self._is_whole(file, list(of_file)) for file, of_file in by_file)

    def _is_whole(self, file: str, ranges: list[Range]) -> bool:
        from fineshards.storage.checksums import checksum_to_base64, file_checksum  # as `whole`

        storage, size = self._storage, ranges[-1].stop
        try:
            if len(ranges) == 1 and not storage.on_disk:
                whole = storage.matches(file, size, checksum_to_base64(ranges[0].crc32c))
            else:
                actual = storage.size(file)
                in_part = actual is not None and 0 < ranges[0].start < size < actual
                whole = actual == size or in_part
            if whole and storage.on_disk:
                with storage.open(file, READ_AHEAD) as opened:
                    for part in ranges:
                        opened.seek(part.start)
                        checksum = file_checksum(opened, 0, part.stop - part.start)
                        whole = whole and checksum == part.crc32c
        except OutputError:
            if storage.size(file) is not None:
                raise
            return False  # another launch has deleted it meanwhile
        if not whole and storage.size(file) is not None:
            _say_damaged(storage.path(file))
        return whole

    def list(self, kind: Kind[Any], files: int = 0) -> dict[str, float]:
        """The keys of the entries of a kind, and when each was written. files: as in `files`."""
        entries = self.files(kind, files)
        return {key: file.modified for key, ending, file in entries if ending == ENTRY}

    def files(self, kind: Kind[Any], files: int = 0) -> Iterator[tuple[str, str, Entry]]:
        """The files in the folder of a kind, as (key, ending, file).

        files: how many source files there are, with whose numbers the keys begin, to list many side
        by side; 0 if they do not, or that is not known.
        """
        folder = f"{self._folder}/{kind.name}"
        for file in self._storage.entries_by_beginning(folder, beginnings(files)):
            key, _, ending = file.name.rpartition("/")[2].partition(".")
            yield key, ending, file

    def drop(self, kind: Kind[Any], key: str) -> None:
        """Deletes an entry, if it is there."""
        self._storage.delete(self.name(kind, key))

    def name(self, kind: Kind[Any], key: str, ending: str = ENTRY) -> str:
        """The file of an entry, or one that is kept beside it."""
        return "/".join(filter(None, (self._folder, kind.name, f"{key}.{ending}")))


def _parsed(kind: Kind[Found], key: str, stored: bytes) -> Finished[Found] | None:
    """The entry that a file is; None if it is damaged, or of other work."""
    with suppress(MsgspecError):
        if seal_holds(stored):
            entry: Finished[Found] = unsealed(stored, Finished[kind.record])  # type: ignore[name-defined]
            return entry if (entry.kind, entry.key) == (kind.name, key) else None
    return None


@cache
def _say_damaged(path: str) -> None:
    """Says once that a file is damaged."""
    _log.warning("%s is damaged; its work is done again", path)


def beginnings(files: int) -> list[str]:
    """How the keys of entries of many source files begin: with all but two digits."""
    if not NUMBERS_IN_A_PART < files <= 100_000:  # with more, 1000 begins 10000
        return [""]
    return [f"{number:05d}"[:-2] for number in range(0, files, NUMBERS_IN_A_PART)]
