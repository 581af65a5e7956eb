"""A bounded folder of files on a local disk that the processes of a machine fill and share.

A file is made under another name, and renamed when it is complete. One process at a time makes
files, by a lock (flock) that ends with its holder; so a part that another one finds was left by a
process that was killed. A file that is deleted while a process still reads it lives on for that
process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from fineshards.errors import OutputError

_LOCK = "lock"
_PART = ".part"
# Of the disk's free space, if no limit is given.
_SHARE = 0.9

# A fork must not keep its parent's locks.
_locked: set[int] = set()


def _let_go() -> None:
    for descriptor in _locked:
        os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """Files by name, without folders.

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
        with folder._explained():
            os.makedirs(folder.path, exist_ok=True)
            with folder._lock():
                if limit is not None:
                    return folder
                state = os.statvfs(folder.path)
                used = sum(size for _, size, _ in folder._files())
                return cls(folder.path, int(_SHARE * (state.f_bavail * state.f_frsize + used)))

    def get(
        self,
        name: str,
        is_good: Callable[[BinaryIO], bool],
        size: int,
        make: Callable[[BinaryIO], None],
    ) -> BinaryIO:
        """An open file, made if there is none; then the least recently used make room for it.

        is_good: whether an existing file can be used; otherwise it is made again. size: of the
        file. make: writes it from its beginning. Raises OutputError if the folder cannot be used or
        is too small, and what the functions raise.
        """
        with self._explained():
            found = self._opened(name, is_good)
            if found is None:
                with self._lock():
                    # Another process may have made it in the meantime.
                    found = self._opened(name, is_good) or self._made(name, size, make)
            with suppress(PermissionError):  # the file of another user
                os.utime(found.fileno())
            found.seek(0)
            return found

    def holds(self, name: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(os.path.join(self.path, name))

    def _opened(self, name: str, is_good: Callable[[BinaryIO], bool]) -> BinaryIO | None:
        """The file; None if there is none that is good."""
        path = os.path.join(self.path, name)
        try:
            found = open(path, "rb", opener=_without_links)  # noqa: SIM115 - returned
        except FileNotFoundError:
            return None
        if is_good(found):
            return found
        found.close()
        with suppress(FileNotFoundError):
            os.unlink(path)
        return None

    def _made(self, name: str, size: int, make: Callable[[BinaryIO], None]) -> BinaryIO:
        """A new file. The lock is held."""
        self._make_room(name, size)
        path = os.path.join(self.path, name)
        part = open(path + _PART, "x+b")  # noqa: SIM115 - returned
        try:
            make(part)
            part.flush()
            # A rename may reach the disk before the content does.
            os.fsync(part.fileno())
            os.rename(path + _PART, path)
        except BaseException:
            os.unlink(path + _PART)
            with suppress(OSError):  # of what could not be written
                part.close()
            raise
        return part

    def _make_room(self, name: str, size: int) -> None:
        """Deletes parts that were left, and files that were not used for the longest time."""
        if size > self.limit:
            raise OutputError(
                f"the cache folder {self.path} may hold {self.limit:,} bytes, but {name} has "
                f"{size:,}. Set a larger cache_folder_bytes, or leave cache_folder out."
            )
        room = self.limit - size - sum(size for _, size, _ in self._files())
        for used, size, path in self._files():
            if used == 0.0 or room < 0:
                os.unlink(path)
                room += size

    def _files(self) -> list[tuple[float, int, str]]:
        """When a file was last used, its size and its path; of parts the time is 0."""
        found = []
        for entry in os.scandir(self.path):
            if entry.name != _LOCK:
                state, is_part = entry.stat(follow_symlinks=False), entry.name.endswith(_PART)
                found.append((0.0 if is_part else state.st_mtime, state.st_size, entry.path))
        return sorted(found)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Only one process at a time makes and deletes."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(os.path.join(self.path, _LOCK), flags, 0o666)
        _locked.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            if descriptor in _locked:
                _locked.remove(descriptor)
                os.close(descriptor)

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


def _without_links(path: str, flags: int) -> int:
    """Opens a file; a link, which may lead anywhere, is an error."""
    return os.open(path, flags | os.O_NOFOLLOW)
