"""Shards that are copied whole into a folder on a local disk, and read there.

The processes of a machine fill and share the folder. A file is made under another name, and renamed
when it is complete. One process at a time makes files, by a lock (flock) that ends with its holder;
so a part that another one finds was left by a process that was killed. A file that is deleted while
a process still reads it lives on for that process.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

from fineshards.errors import OutputError
from fineshards.loader.far.remote_shards import BLOCK_BYTES, FarShards
from fineshards.loader.tokens.local_shards import LocalShards, Shard
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy
from fineshards.shards.job.job import job_name
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.local import LocalStorage
from fineshards.storage.ranges import submit

# Requests in flight for one shard, of BLOCK_BYTES each.
_AT_ONCE = 16
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
            file = self._opened(name, is_good)
            if file is None:
                with self._lock():
                    # Another process may have made it in the meantime.
                    file = self._opened(name, is_good) or self._made(name, size, make)
            with suppress(PermissionError):  # the file of another user
                os.utime(file.fileno())
            file.seek(0)
            return file

    def holds(self, name: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(os.path.join(self.path, name))

    def _opened(self, name: str, is_good: Callable[[BinaryIO], bool]) -> BinaryIO | None:
        """The file; None if there is none that is good."""
        path = os.path.join(self.path, name)
        try:
            file = open(path, "rb", opener=_without_links)  # noqa: SIM115 - returned
        except FileNotFoundError:
            return None
        if is_good(file):
            return file
        file.close()
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


class CachedShards(LocalShards):
    """Reads token ranges from copies of shards. Threads can share a reader; processes cannot.

    in_order: whether the shard after the ones requested will be needed next.
    """

    def __init__(
        self, split: SplitShards, folder: CacheFolder, in_order: bool, mapped: bool
    ) -> None:
        self._copies = _Copies(split, folder)
        super().__init__(replace(split, storage=self._copies), mapped)
        self._in_order = in_order
        self._waiting: deque[int] = deque()
        self._fetching: threading.Thread | None = None

    def request(self, shards: Sequence[int], *_: Sequence[int]) -> None:
        """Copies the shards of samples that will be read soon, in a thread of its own."""
        wanted = list(dict.fromkeys(shards))
        if self._in_order and wanted and wanted[-1] + 1 < self._split.shards:
            wanted.append(wanted[-1] + 1)
        for shard in wanted:
            expected = shard in self.shelf or shard in self._waiting
            if not expected and not self._copies.holds(shard):
                self._waiting.append(shard)
        if self._waiting and (self._fetching is None or not self._fetching.is_alive()):
            arguments = (self._copies, self._waiting)
            self._fetching = threading.Thread(target=_fetch, args=arguments, daemon=True)
            self._fetching.start()

    def close(self) -> None:
        self._waiting.clear()
        super().close()

    def _load(self, shard: int) -> Shard:
        # Copies that were deleted take room on the disk for as long as they are open.
        for other in list(self.shelf):
            if not self._copies.holds(other):
                self.shelf.pop(other, None)
        return super()._load(shard)


class _Copies(LocalStorage):
    """The cache folder, as storage of a split's shards that copies a shard when it is opened."""

    def __init__(self, split: SplitShards, folder: CacheFolder) -> None:
        super().__init__(folder.path)
        self._split, self._folder = split, folder
        # The CRC-32C of each shard in its generation, in base64.
        self._expected = _checksums(Manifest.load_finished(split.storage, split.generation))
        self._numbers = {split.shard_name(shard): shard for shard in range(split.shards)}
        self._dataset = hashlib.sha256(split.fingerprint.encode()).hexdigest()[:16]

    def path(self, name: str) -> str:
        return os.path.join(self.root, self._copy(self._numbers[name]))

    def holds(self, shard: int) -> bool:
        """Whether there is a copy of a shard."""
        return self._folder.holds(self._copy(shard))

    def _open(self, name: str, buffering: int = -1) -> BinaryIO:
        """See LocalStorage. Copies the shard if there is no copy of it, or a damaged one."""
        return self.fetch(self._numbers[name])

    def fetch(self, shard: int) -> BinaryIO:
        """An open copy of a shard."""
        return self._folder.get(
            self._copy(shard),
            partial(self._is_good, shard),
            self._split.file_bytes(shard),
            partial(self._make, shard),
        )

    def _copy(self, shard: int) -> str:
        """A copy's name in the cache folder, by dataset, shard and content."""
        name, _ = os.path.splitext(os.path.basename(self._split.shard_name(shard)))
        # Imported here because it needs google_crc32c, which a training machine may lack.
        from fineshards.storage.checksums import checksum_from_base64

        checksum = checksum_from_base64(self._expected[self._split.shard_name(shard)])
        return f"{self._dataset}.{name}.{checksum:08x}.npy"

    def _is_good(self, shard: int, copy: BinaryIO) -> bool:
        try:
            size = os.fstat(copy.fileno()).st_size
            self._split.check(shard, size, copy.read(npy.HEADER_BYTES))
        except OutputError:
            return False
        return True

    def _make(self, shard: int, part: BinaryIO) -> None:
        with suppress(OutputError):
            self._download(shard, part)
            return
        # It may have been replaced, by a redaction, while it was copied.
        self._download(shard, part)

    def _download(self, shard: int, part: BinaryIO) -> None:
        """Writes a shard; raises OutputError unless it is that of its generation or the latest.

        That may have redacted documents, which the latest manifest knows.
        """
        read, size = FarShards(self._split).read, self._split.file_bytes(shard)
        part.seek(0)
        pending: deque[Future[bytes]] = deque()
        for start in range(0, size, BLOCK_BYTES):
            if len(pending) == _AT_ONCE:
                part.write(pending.popleft().result())
            stop = min(start + BLOCK_BYTES, size)
            pending.append(submit(partial(read, shard, start, stop)))
        while pending:
            part.write(pending.popleft().result())
        from fineshards.storage.checksums import checksum_to_base64, file_checksum

        storage, name = self._split.storage, self._split.shard_name(shard)
        part.seek(0)
        checksum, expected = checksum_to_base64(file_checksum(part)), self._expected[name]
        if checksum == expected:
            return
        latest = Manifest.load_finished(storage)
        if _checksums(latest).get(name) == checksum:
            return
        change = job_name(latest.generation + 1)
        why = "it is damaged. Copy it again from its origin, or run fineshards repair."
        if storage.size(change) is not None:
            why = (
                f"another change of the dataset is not finished (see {change}). Finish it by its "
                "own command, or wait until it has ended."
            )
        raise OutputError(
            f"the shard {storage.path(name)} has the crc32c {checksum}, expected {expected}: {why}"
        )


def _checksums(manifest: Manifest) -> dict[str, str]:
    """The CRC-32C of each shard and loss mask, in base64."""
    return {name: checksum for shard in manifest.shards for name, _, checksum in shard.files()}


def _fetch(copies: _Copies, waiting: deque[int]) -> None:
    # The reader of the shard gets the error.
    with suppress(OutputError, IndexError):
        while True:
            copies.fetch(waiting.popleft()).close()
