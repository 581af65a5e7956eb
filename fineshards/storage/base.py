"""The output folder as the job sees it: named files that appear whole or not at all.

Names are relative, with `/` between parts; every name follows from a key of the job. Two attempts
may write one name at the same time; both succeed, and as the job's bytes depend on the name alone,
so does the result. A name that is there is complete, and the folders `test/` and `train/` never
hold anything but shards: readers that list a folder and load whatever is in it (the seed's does)
stay right while the job runs.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import BinaryIO

from fineshards.errors import OutputError, UsageError

TEMPORARY = "checkpoints/unfinished"
# Bytes of a part that one request fetches, where requests have a price.
_READ_AHEAD = 16 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in storage: name, size in bytes, time of last change in seconds since the epoch."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `[start, stop)` of a file."""

    name: str
    start: int
    stop: int


class Storage(ABC):
    """An output folder. Cheap to make and to pickle; opens nothing until it is used.

    root: the folder as people name it. checks_itself: whether it notices by itself when content is
    not what was written. maps: whether files can be mapped into memory (`open_mapped`). All methods
    raise OutputError for what cannot be done.
    """

    root: str
    checks_itself: bool
    maps: bool

    @abstractmethod
    def path(self, name: str) -> str:
        """The full path of a name, for people and for what opens files itself."""

    @abstractmethod
    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Makes folders where readers count on them; those that are there stay."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Size in bytes, or None when there is no such file."""

    @abstractmethod
    def entries(self, folder: str) -> Iterator[Entry]:
        """All files below a folder, at any depth, in no particular order; none if it is missing.

        An empty name is the output folder itself.

        Files that vanish while the folder is read (another process may be at work) are left out.
        """

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """The names that begin with a prefix, down to the next `/`: files, and folders with a `/`.

        So `train` finds the folder `train/` and whatever lies beside it under such a name, and
        `train/` what lies in that folder.
        """

    @abstractmethod
    def open(self, name: str, read_ahead: int = 1 << 16) -> BinaryIO:
        """Opens a file for reading at any place; raises OutputError when it is not there.

        read_ahead: bytes fetched at least, where fetching has a price; large for reading from
        front to back.
        """

    @abstractmethod
    def create(self, name: str, lasting: bool = True) -> AbstractContextManager[BinaryIO]:
        """A file to write; it appears under `name` when the block ends without an exception.

        lasting: whether it is to outlive a power cut. One that is not may be damaged after it.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes a file; one that is already gone is no error."""

    @abstractmethod
    def delete_folder(self, name: str) -> None:
        """Removes a folder and all below it; one that is already gone is no error."""

    def open_mapped(self, name: str) -> mmap.mmap | bytes:
        """A whole file, mapped into memory for reading; only where `maps` is true."""
        raise OutputError(f"{self.path(name)} cannot be mapped into memory: it is not on a disk.")

    def compose(self, name: str, header: bytes, parts: Sequence[Part]) -> int:
        """Makes a file of a header and parts of other files; returns its crc32c.

        The service joins the parts by itself where it can; else as `assemble` does.
        """
        return self.assemble(name, header, parts)

    def assemble(self, name: str, header: bytes, parts: Sequence[Part]) -> int:
        """As `compose`, with all bytes copied through this process, a little at a time."""
        # Here, since it brings google_crc32c, which machines that only read need not have.
        from fineshards.storage.checksums import copy_with_checksum, crc32c

        with self.create(name) as target:
            target.write(header)
            checksum = crc32c(header)
            for part in parts:
                size = part.stop - part.start
                with self.open(part.name, min(size, _READ_AHEAD)) as source:
                    source.seek(part.start)
                    try:
                        checksum = copy_with_checksum(source, size, target, checksum)
                    except EOFError as error:
                        raise OutputError(
                            f"{name}: its part {part.name} {error}. Someone changed the "
                            "checkpoints folder; start again with --overwrite."
                        ) from error
        return checksum

    def read(self, name: str) -> bytes:
        """The content of a small file; raises OutputError when it is not there."""
        with self.open(name) as file:
            return file.read()

    def read_if_there(self, name: str) -> bytes | None:
        """The content of a small file, or None when it is not there."""
        return None if self.size(name) is None else self.read(name)

    def write(self, name: str, content: bytes, lasting: bool = True) -> None:
        """Writes a small file; lasting: see `create`."""
        with self.create(name, lasting) as file:
            file.write(content)


def open_storage(root: str) -> Storage:
    """The storage of an output folder: a local path or `gs://bucket/folder`.

    Raises UsageError for other schemes, and for gs:// without the libraries for it.
    """
    scheme, separator, _ = root.partition("://")
    if not separator:
        from fineshards.storage.local import LocalStorage

        return LocalStorage(root)
    if scheme == "gs":
        if not _is_installed("google.cloud.storage"):
            raise UsageError(
                f"{root}: gs:// needs google-cloud-storage. Install it with: "
                "pip install 'fineshards[gcs]'"
            )
        from fineshards.storage.gcs import GcsStorage

        return GcsStorage(root)
    raise UsageError(
        f"{root}: {scheme}:// is not supported; give a local folder, or gs://bucket/folder."
    )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
