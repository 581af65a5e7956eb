"""An output folder on a local disk.

A file is written under a temporary name inside `checkpoints/`, flushed to the disk and then
renamed, so a name that is there is complete, and nothing unfinished is ever seen in `test/` and
`train/`. What need not outlive a power cut is not flushed, so after one it may be damaged.
"""

from __future__ import annotations

import io
import mmap
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY, Entry, Storage

# The disk begins to write when so many bytes are waiting.
_WRITE_BEHIND = 16 << 20


class LocalStorage(Storage):
    """A local output folder."""

    checks_itself = False
    maps = True

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def path(self, name: str) -> str:
        """See Storage."""
        return os.path.join(self.root, name)

    def make_folders(self, folders: tuple[str, ...]) -> None:
        """Does nothing: a folder appears with its first file."""

    def size(self, name: str) -> int | None:
        """See Storage."""
        try:
            return os.stat(self.path(name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._cannot("read", name, error) from error

    def entries(self, folder: str) -> Iterator[Entry]:
        """See Storage."""
        for parent, _, files in os.walk(self.path(folder)):
            for file in files:
                path = os.path.join(parent, file)
                try:
                    state = os.stat(path)
                except FileNotFoundError:
                    continue
                name = os.path.relpath(path, self.root).replace(os.sep, "/")
                yield Entry(name, state.st_size, state.st_mtime)

    def names(self, prefix: str) -> Iterator[str]:
        """See Storage."""
        folder, separator, beginning = prefix.rpartition("/")
        try:
            found = os.listdir(self.path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in found:
            if name.startswith(beginning):
                full = f"{folder}{separator}{name}"
                yield f"{full}/" if os.path.isdir(self.path(full)) else full

    def open(self, name: str, read_ahead: int = 0) -> BinaryIO:
        """See Storage."""
        try:
            return open(self.path(name), "rb")
        except OSError as error:
            raise self._cannot("read", name, error) from error

    def open_mapped(self, name: str) -> mmap.mmap | bytes:
        """See Storage."""
        with self.open(name) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""  # which the system does not map
            try:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise OutputError(
                    f"{self.path(name)} cannot be mapped into memory: {error.strerror}. Copy the "
                    "dataset to a disk that can."
                ) from error

    @contextmanager
    def create(self, name: str, lasting: bool = True) -> Iterator[BinaryIO]:
        """See Storage."""
        target = self.path(name)
        temporary = None
        try:
            os.makedirs(self.path(TEMPORARY), exist_ok=True)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            temporary = self.path(f"{TEMPORARY}/{os.path.basename(name)}.{uuid.uuid4().hex}")
            with io.BufferedWriter(
                (_WriteBehind if lasting else io.FileIO)(temporary, "x")
            ) as file:
                yield file
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
            os.replace(temporary, target)
            if lasting:
                _sync_folder(os.path.dirname(target))
        except OSError as error:
            raise self._cannot("written", name, error) from error
        finally:
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """See Storage."""
        try:
            os.unlink(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise self._cannot("deleted", name, error) from error

    def delete_folder(self, name: str) -> None:
        """See Storage."""

        def skip_what_is_gone(_function: object, _path: str, info: Any) -> None:
            if not isinstance(info[1], FileNotFoundError | NotADirectoryError):
                raise info[1]

        try:
            shutil.rmtree(self.path(name), onerror=skip_what_is_gone)
        except OSError as error:
            raise self._cannot("deleted", name, error) from error

    def _cannot(self, what: str, name: str, error: OSError) -> OutputError:
        advice = {
            "read": "Check that it exists and is yours to read.",
            "written": "Check that the folder exists, is yours to write and has space; "
            "then run again.",
            "deleted": "Check that its folder is yours to write; then run again.",
        }
        return OutputError(
            f"{self.path(name)} cannot be {what}: {error.strerror or error}. {advice[what]}"
        )


class _WriteBehind(io.FileIO):
    """A new file that goes to the disk while it is written, so that the flush at its end is short.

    Linux begins to write out a range that is declared unneeded, and keeps what it has not written
    yet (mm/fadvise.c); other systems may do nothing.
    """

    def __init__(self, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._told = self._written = 0

    def write(self, data: Any) -> int:
        """See io.FileIO."""
        count = super().write(data)
        self._written += count
        waiting = self._written - self._told
        if waiting >= _WRITE_BEHIND and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self.fileno(), self._told, waiting, os.POSIX_FADV_DONTNEED)
            self._told = self._written
        return count


def _sync_folder(path: str) -> None:
    # A rename is on the disk only when the folder is: without this a power cut could undo it.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
