"""A bounded folder of files on a local disk that the processes of a machine fill and share.

A file is made under the name `NAME.part`, by the process that holds a lock (flock) on it; the
others wait. It is renamed when it is complete. A lock ends with its holder, so what a killed
process leaves is a part that no one has locked, and the next process that needs room deletes it. A
file that is deleted while a process still reads it lives on for that process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fineshards.errors import OutputError

_LOCK = "lock"
_PART = ".part"
# Of the disk's free space, if no limit is given.
_SHARE = 0.9
# Between two looks for room, while all of it is taken by files that others are making.
_SECONDS = 0.2

# A fork must not keep its parent's locks.
_locked: set[int] = set()


def _let_go() -> None:
    for descriptor in _locked:
        os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """Files by name; names have one folder and no more: `folder/file`.

    path: the folder; no other files may be kept in it. limit: the size of all files, in bytes.
    """

    path: str
    limit: int

    @classmethod
    def open(cls, path: str, limit: int | None) -> CacheFolder:
        """Makes the folder if there is none; raises OutputError if that or writing is impossible.

        limit: None for nine tenths of what is free on the disk, or in use by the folder, now.
        """
        folder = cls(os.path.abspath(os.path.expanduser(path)), limit or 0)
        with folder._explained(), folder._lock():
            if limit is not None:
                return folder
            state = os.statvfs(folder.path)
            used = sum(file.size for file in folder._files())
            return cls(folder.path, int(_SHARE * (state.f_bavail * state.f_frsize + used)))

    def get(
        self,
        name: str,
        is_good: Callable[[BinaryIO], bool],
        size: Callable[[], int],
        make: Callable[[BinaryIO], None],
    ) -> BinaryIO:
        """An open file, made if there is none; then the least recently used make room for it.

        is_good: whether an existing file can be used; otherwise it is made again. size: of the
        file. make: writes it from its beginning. Raises OutputError if the folder cannot be used or
        is too small, and what the functions raise.
        """
        while True:
            found = self._opened(name, is_good)
            if found is not None:
                return found
            with self._explained(), self._only_one(name) as part:
                if part is not None and not self.holds(name):
                    self._make_room(name, size(), part)
                    make(part)
                    part.flush()
                    # A rename may reach the disk before the content does.
                    os.fsync(part.fileno())
                    os.rename(self._file(name) + _PART, self._file(name))

    def holds(self, name: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(self._file(name))

    def _refuse_links(self, name: str) -> None:
        """Raises OSError if a file or its folder is a link, which may lead anywhere."""
        path = self._file(name)
        for place in (os.path.dirname(path), path, path + _PART, os.path.join(self.path, _LOCK)):
            if os.path.islink(place):
                raise OSError(errno.ELOOP, f"{place} is a link")

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _opened(self, name: str, is_good: Callable[[BinaryIO], bool]) -> BinaryIO | None:
        """The file, marked as used now; None if there is none that is good."""
        with self._explained():
            self._refuse_links(name)
            try:
                found = open(self._file(name), "rb")  # noqa: SIM115 - returned
            except FileNotFoundError:
                return None
            if is_good(found):
                with suppress(PermissionError):  # the file of another user
                    os.utime(found.fileno())
                found.seek(0)
                return found
            found.close()
            Path(self._file(name)).unlink(missing_ok=True)
            return None

    @contextmanager
    def _only_one(self, name: str) -> Iterator[BinaryIO | None]:
        """The part to write, locked; None if another process has finished or removed it."""
        path = self._file(name) + _PART
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _flocked(path) as descriptor:
            if not _is_at(descriptor, path):
                yield None
                return
            try:
                with open(descriptor, "r+b", closefd=False) as part:
                    yield part
            finally:
                # It is still there unless it was renamed.
                if _is_at(descriptor, path):
                    os.unlink(path)

    def _make_room(self, name: str, size: int, part: BinaryIO) -> None:
        """Deletes what was not used for the longest time, and reserves the room for a part."""
        if size > self.limit:
            raise OutputError(
                f"the cache folder {self.path} may hold {self.limit:,} bytes, but {name} has "
                f"{size:,}. Set a larger cache_folder_bytes, or leave cache_folder out."
            )
        own = self._file(name) + _PART
        while True:
            with self._lock():
                files = [file for file in self._files() if file.path != own]
                excess = sum(file.size for file in files) + size - self.limit
                for file in sorted(files, key=lambda file: file.used):
                    if excess > 0 and file.delete():
                        excess -= file.size
                if excess <= 0:
                    # The size counts from now on, before the content is there.
                    part.truncate(size)
                    return
            time.sleep(_SECONDS)

    def _files(self) -> list[_File]:
        found = []
        for parent, _, names in os.walk(self.path):
            for path in (os.path.join(parent, name) for name in names if name != _LOCK):
                try:
                    state = os.stat(path)
                except FileNotFoundError:
                    continue
                found.append(_File(path, state.st_size, state.st_mtime))
        return found

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Only one process at a time counts and deletes."""
        os.makedirs(self.path, exist_ok=True)
        with _flocked(os.path.join(self.path, _LOCK)):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"the cache folder {self.path} cannot be used: {error.strerror or error}. Give one "
                "that you may write to, on a disk with room for cache_folder_bytes, or leave "
                "cache_folder out."
            ) from error


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    size: int
    used: float

    def delete(self) -> bool:
        """Deletes a complete file, or a part that no one is writing any more."""
        if not self.path.endswith(_PART):
            Path(self.path).unlink(missing_ok=True)
            return True
        try:
            with _flocked(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
                if _is_at(descriptor, self.path):
                    os.unlink(self.path)
                return True
        except BlockingIOError:
            return False


@contextmanager
def _flocked(path: str, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    """An open file, made if there is none, while this thread holds the lock on it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    _locked.add(descriptor)
    try:
        fcntl.flock(descriptor, how)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _locked.discard(descriptor)
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
