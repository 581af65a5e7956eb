"""Shards that are copied whole into a folder on a local disk, and read there."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import BinaryIO

from fineshards.errors import OutputError
from fineshards.loader.far.cache_folder import CacheFolder
from fineshards.loader.far.remote_shards import BLOCK_BYTES, FarShards
from fineshards.loader.tokens.local_shards import LocalShards, Shard
from fineshards.loader.tokens.shard_contents import ShardContents
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy
from fineshards.storage.local import LocalStorage
from fineshards.storage.ranges import submit

# Requests in flight for one shard, of BLOCK_BYTES each.
_AT_ONCE = 16


class CachedShards(LocalShards):
    """Reads token ranges from copies of shards. Threads can share a reader; processes cannot.

    check: whether a copy that is there is compared with its checksum before it is first used, as
    every new copy is. in_order: whether the shard after the ones requested will be needed next.
    """

    def __init__(
        self, split: SplitShards, folder: CacheFolder, mapped: bool, check: bool, in_order: bool
    ) -> None:
        self._copies = _Copies(split, folder, check)
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
            known = shard in self.shelf or shard in self._waiting
            if not known and not self._copies.holds(shard):
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

    def __init__(self, split: SplitShards, folder: CacheFolder, check: bool) -> None:
        super().__init__(folder.path)
        self._split, self._folder, self._check = split, folder, check
        self._contents = ShardContents(split)
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

        checksum = checksum_from_base64(self._contents.expected(shard))
        return f"{self._dataset}.{name}.{checksum:08x}.npy"

    def _is_good(self, shard: int, copy: BinaryIO) -> bool:
        try:
            size = os.fstat(copy.fileno()).st_size
            self._split.check(shard, size, copy.read(npy.HEADER_BYTES))
            if self._check:
                self._contents.compare(shard, copy)
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
        """Writes a shard; raises OutputError if it has another checksum than the dataset says."""
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
        self._contents.compare(shard, part)


def _fetch(copies: _Copies, waiting: deque[int]) -> None:
    # The reader of the shard gets the error.
    with suppress(OutputError, IndexError):
        while True:
            copies.fetch(waiting.popleft()).close()
