"""An output folder: named files that appear complete or not at all.

Names are relative and use `/`. A name is derived from a key of the job, and its bytes depend on the
name alone, so two attempts may write the same name at the same time: both succeed, with the same
result. A file that exists is complete. The folders `test/` and `train/` never hold anything but
shards, so a reader that lists a folder and loads every file in it (as the seed script's does) works
while the job runs.

Names come from records in the folder, which anyone can have written. Each name passes `below`, so
no record leads out of the folder.
"""

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from fineshards.errors import OutputError
from fineshards.storage.ranges import RangeReader

TEMPORARY = "checkpoints/unfinished"
# Bytes per request, where requests have a price.
READ_AHEAD = 16 << 20
# Small enough to stay in a core's cache between the read, the checksum and the write.
_COPY_BYTES = 1 << 20
# No path of Linux is longer. Names of objects end at 1,024.
_LONGEST_NAME = 4096
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in storage: name, size in bytes, time of last change in seconds since the epoch."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes `[start, stop)` of a file."""

    name: str
    start: int
    stop: int


def is_below(name: str) -> bool:
    """Whether a name is that of a file below a folder, at any depth.

    Example:
        >>> is_below("train/train_0000.npy"), is_below("train//x"), is_below("a/../../x")
        (True, False, False)
    """
    try:
        is_short = len(name) <= _LONGEST_NAME and len(os.fsencode(name)) <= _LONGEST_NAME
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False
    return is_short and "\0" not in name and {"", ".", ".."}.isdisjoint(name.split("/"))


def below(name: str, root: str) -> str:
    """The name, if it is that of a file or folder below a root, or empty for the root itself.

    Raises OutputError for any other, which nothing but a record that someone has changed can name.
    """
    if name and not is_below(name.removesuffix("/")):
        raise OutputError(
            f"a record in {root} names {shortened(name)}, which is not a file of this folder. "
            "Someone has changed the record. Copy the folder again, or make it again."
        )
    return name


def shortened(name: str) -> str:
    """A name as messages show it: quoted, escaped, and not longer than a line."""
    return ascii(name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}...")


def always() -> None:
    """The check of a deletion that no one else can get in the way of."""


class Storage(ABC):
    """An output folder. Cheap to create and to pickle; opens nothing until it is used.

    All methods raise OutputError when they fail.

    root: the folder's path or URL. on_disk: whether files can be mapped into memory, locked, and
    written to in places. A disk does not detect damage, and asking it costs no request.
    """

    root: str
    on_disk: bool

    @abstractmethod
    def path(self, name: str) -> str:
        """The full path or URL of a name."""

    def make_folders(self, folders: tuple[str, ...]) -> None:  # noqa: B027
        """Creates folders that readers expect to exist, where files alone do not make them."""

    def scratch_folder(self) -> str | None:
        """The path of a folder for scratch files, on a disk; None elsewhere."""
        return None

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Size in bytes, or None if there is no such file."""

    def matches(self, name: str, size: int, checksum: str) -> bool:
        """Whether a file has a size and a CRC-32C, in base64.

        On a disk the file is read. A store says the checksum of an object.
        """
        from fineshards.storage.checksums import checksum_to_base64, file_checksum  # late: `write`

        if self.size(name) != size:
            return False
        with self.open(name, READ_AHEAD) as opened:
            return checksum_to_base64(file_checksum(opened)) == checksum

    @abstractmethod
    def version(self, name: str) -> str | None:
        """What changes whenever a file is written again; None if there is no such file."""

    @abstractmethod
    def entries(self, folder: str) -> Iterator[Entry]:
        """All files below a folder, at any depth, in any order; none if the folder is missing.

        An empty name means the output folder itself. What is deleted meanwhile is left out.
        """

    def entries_by_beginning(self, folder: str, beginnings: Sequence[str]) -> Iterator[Entry]:
        """As `entries`; a store lists names with one of these beginnings alone, side by side."""
        return self.entries(folder)

    def others(self, folder: str) -> Iterator[tuple[str, str]]:
        """What else lies below a folder, at any depth: (name, what it is).

        Folders, pipes, sockets, devices and links that lead nowhere; nothing in object storage.
        """
        yield from ()

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """The names that start with a prefix, down to the next `/`; folders end with `/`.

        `train` finds `train/` and siblings such as `train_old/`; `train/` finds what is in it.
        """

    @abstractmethod
    def open(self, name: str, read_ahead: int = 1 << 16) -> BinaryIO:
        """Opens a seekable file for reading; raises OutputError if there is none.

        Never waits: whatever is not a file (a named pipe, a socket) is an OutputError too.
        read_ahead: the least bytes to fetch per request; large for sequential reads.
        """

    def open_ranges(self, name: str) -> RangeReader:
        """Opens a file, in a store its version of now; it or a read raises OutputError if none."""
        return RangeReader(self.size(name) or 0, partial(self.read_range, name))

    @abstractmethod
    @contextmanager
    def create(self, name: str, durable: bool = True, old: str | None = None) -> Iterator[BinaryIO]:
        """A file to write. It appears under `name` if the `with` body ends without an exception.

        durable: whether the file must survive a power cut. Otherwise one may damage it.
        old: the `version` of the file that it takes the place of. Of two attempts that replace it
        with other bytes the later one fails, on a disk unless both end within the same instant.
        """
        ...

    @abstractmethod
    def claim(self, name: str, content: bytes) -> bool:
        """Writes a small file if there is none; returns whether it has this content now.

        Of several callers with different contents one gets True, on a disk too.
        """

    @abstractmethod
    def delete(self, name: str, check: Callable[[], object] = always) -> None:
        """Deletes a file; a missing file is not an error.

        check: called after the file was found and before it is deleted. What it raises ends the
        deletion. On gs:// only the version that was found is deleted, so a file that another job
        wrote after a check that passed is kept; on s3:// a file with other bytes is kept.
        """

    @abstractmethod
    def delete_folder(self, name: str, check: Callable[[], object] = always) -> None:
        """Deletes a folder and everything in it; a missing folder is not an error.

        check: as in `delete`; called for every few thousand files.
        """

    def open_mapped(self, name: str) -> mmap.mmap | bytes:
        """A whole file, mapped into memory for reading; only where `on_disk` is true."""
        raise NotImplementedError

    def open_at(self, name: str, start: int, new: bool = False) -> AbstractContextManager[BinaryIO]:
        """A place in an unfinished file on a disk, to write to; others may write to other places.

        new: whether the file is made if it is not there: then its name is one in `checkpoints/`.
        """
        raise NotImplementedError

    def publish(self, name: str, target: str, size: int) -> None:
        """Flushes a file that was written by `open_at`, then gives it its name, over any other.

        size: in bytes; what is beyond is cut off.
        """
        raise NotImplementedError

    def assemble(self, name: str, header: bytes, parts: Sequence[FileRange]) -> int:
        """Creates a file from a header and parts of other files; returns its CRC-32C.

        The bytes pass through this process, in small chunks.
        """
        # Imported here because it needs google_crc32c, which a read-only install may lack.
        from fineshards.storage.checksums import crc32c

        with self.create(name) as target:
            target.write(header)
            checksum = crc32c(header)
            for part in parts:
                checksum = self.copy(part, target, checksum)
        return checksum

    def copy(self, part: FileRange, target: BinaryIO, checksum: int = 0) -> int:
        """Copies a range of a file to another file; returns the CRC-32C of that one.

        checksum: that of what is before it.
        """
        from fineshards.storage.checksums import crc32c  # imported late, as above

        left = part.stop - part.start
        with self.open(part.name, min(left, READ_AHEAD)) as source:
            source.seek(part.start)
            while left:
                content = source.read(min(left, _COPY_BYTES))
                if not content:
                    raise OutputError(
                        f"{self.path(part.name)} ended {left} bytes early, while it was copied. "
                        "Someone changed the checkpoints folder; start again with --overwrite."
                    )
                target.write(content)
                checksum = crc32c(content, checksum)
                left -= len(content)
        return checksum

    def read(self, name: str) -> bytes:
        """The content of a small file; raises OutputError if there is none."""
        with self.open(name) as file:
            return file.read()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)` of a file; raises OutputError if it is shorter, or missing."""
        with self.open(name, read_ahead=1) as file:
            file.seek(start)
            return self._whole_range(name, file.read(stop - start), start, stop)

    def _whole_range(self, name: str, content: bytes, start: int, stop: int) -> bytes:
        if len(content) != stop - start:
            raise OutputError(
                f"{self.path(name)} ends at byte {start + len(content)}, expected {stop} at least. "
                "Someone changed the folder; start again with --overwrite."
            )
        return content

    def read_if_there(self, name: str) -> bytes | None:
        """The content of a small file, or None if there is none."""
        try:
            return None if self.size(name) is None else self.read(name)
        except OutputError:
            if self.size(name) is not None:
                raise
            return None  # deleted meanwhile

    def replace(self, name: str, content: bytes, version: str | None) -> None:
        """Writes a small file in the place of another one: see `create`."""
        with self.create(name, old=version) as file:
            file.write(content)

    def write(self, name: str, content: bytes, durable: bool = True) -> int:
        """Writes a small file; returns its CRC-32C. For durable see `create`."""
        with self.create(name, durable) as file:
            file.write(content)
        from fineshards.storage.checksums import crc32c  # imported late, as in `assemble`

        return crc32c(content)
