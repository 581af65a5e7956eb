"""Shards on far storage: opened and checked once, then read in ranges of bytes by any thread."""

from __future__ import annotations

from concurrent.futures import Future

from fineshards.errors import OutputError
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy
from fineshards.storage.base import Ranges


class FarShards:
    """Reads bytes of a split's shards, one request each. Threads can share it."""

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        self._open: dict[int, Future[Ranges]] = {}

    def read(self, shard: int, start: int, stop: int) -> bytes | bytearray:
        """Bytes `[start, stop)` of a shard's file.

        Raises OutputError if the shard is missing, damaged or unreachable.
        """
        opened = self._opened(shard)
        try:
            return opened.result().read_at(start, stop)
        except OutputError:
            # A redaction or a repair may have replaced it since it was opened.
            self._forget(shard, opened)
            return self._opened(shard).result().read_at(start, stop)

    def size(self, shard: int) -> int:
        """The size of a shard's file in bytes."""
        return self._opened(shard).result().size

    def _opened(self, shard: int) -> Future[Ranges]:
        """The opened shard. The first thread that wants it opens it, and the others wait."""
        mine: Future[Ranges] = Future()
        try:
            found = self._open.setdefault(shard, mine)
            if found is mine:
                mine.set_result(self._checked(shard))
            return found
        except BaseException as error:
            self._forget(shard, mine)
            if not mine.done():
                mine.set_exception(error)
            raise

    def _checked(self, shard: int) -> Ranges:
        ranges = self._split.storage.open_ranges(self._split.shard_name(shard))
        header = ranges.read_at(0, min(ranges.size, npy.HEADER_BYTES))
        self._split.check(shard, ranges.size, bytes(header))
        return ranges

    def _forget(self, shard: int, opened: Future[Ranges]) -> None:
        if self._open.get(shard) is opened:
            self._open.pop(shard, None)
