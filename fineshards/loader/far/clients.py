"""Samples on far storage: all requests of a batch at once, and a cache of what was read.

A request takes tens of milliseconds, however few bytes it asks for. So many are in flight at a
time, and what they ask for depends on the order (`fineshards/loader/far/sizes.py`): blocks of
megabytes that many samples share, or exactly the bytes of each sample.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from fineshards.loader.far.shards import FarShards
from fineshards.loader.far.sizes import BLOCK_BYTES, Sizes
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy
from fineshards.storage.ranges import submit

# Bytes in flight, or fetched and not yet copied, for one call of `join`, beside the cache.
_IN_FLIGHT_BYTES = 256 << 20

# A request: the shard, and bytes [start, stop) of its file.
_Range = tuple[int, int, int]
_Content = bytes | bytearray


class RemoteShards:
    """Reads token ranges from shards. Threads can share a reader; processes cannot."""

    def __init__(self, split: SplitShards, sizes: Sizes) -> None:
        self.sizes = sizes
        self._split = split
        self._files = FarShards(split)
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Range, Future[_Content]] = OrderedDict()
        self._kept_bytes = 0
        # Of those, what was asked for by `request` and not read yet.
        self._unread: set[_Range] = set()
        self._unread_bytes = 0

    def join(
        self, shards: Sequence[int], begins: Sequence[int], stops: Sequence[int]
    ) -> npt.NDArray[np.unsignedinteger]:
        """Tokens `[begins[i], stops[i])` of shard `shards[i]`, and of the next ones, joined.

        Raises OutputError if a shard is missing, damaged or unreachable.
        """
        copies: dict[_Range, list[tuple[int, int, int]]] = {}
        filled = 0
        for shard, begin, stop in zip(shards, begins, stops, strict=True):
            for needed, at, tokens in self._needed(shard, begin, stop - begin):
                copies.setdefault(needed, []).append((filled, at, tokens))
                filled += tokens
        out = np.empty(filled, self._split.dtype)

        def copy(needed: _Range, fetched: Future[_Content]) -> None:
            content = fetched.result()
            for place, at, tokens in copies[needed]:
                part = np.frombuffer(content, self._split.dtype, tokens, at)
                out[place : place + tokens] = part

        pending: deque[tuple[_Range, Future[_Content]]] = deque()
        in_flight = 0
        for needed in copies:
            in_flight += _bytes(needed)
            while pending and in_flight > _IN_FLIGHT_BYTES:
                in_flight -= _bytes(pending[0][0])
                copy(*pending.popleft())
            pending.append((needed, self._fetched(needed)))
        while pending:
            copy(*pending.popleft())
        return out

    def request(self, shards: Sequence[int], begins: Sequence[int], stops: Sequence[int]) -> None:
        """Asks for tokens that will be joined soon, as many as the cache has room for."""
        exact = self.sizes.read_bytes is None
        room = self.sizes.cache_bytes if exact else self.sizes.cache_bytes // 2
        for shard, begin, stop in zip(shards, begins, stops, strict=True):
            for needed, _, _ in self._needed(shard, begin, stop - begin):
                with self._lock:
                    if needed in self._kept:
                        continue
                    # More would only push each other out before they are read.
                    if self._unread_bytes + _bytes(needed) > room:
                        return
                    self._unread.add(needed)
                    self._unread_bytes += _bytes(needed)
                    self._request(needed)

    def close(self) -> None:
        """Empties the cache, and cancels requests that are not in flight yet."""
        with self._lock:
            for needed in self._unread:
                self._kept[needed].cancel()
            for needed in list(self._kept):
                self._drop(needed)

    def _needed(self, shard: int, offset: int, tokens: int) -> Iterator[tuple[_Range, int, int]]:
        """What to request for tokens from `offset` on: (request, first byte in it, tokens)."""
        item, block = self._split.dtype.itemsize, self.sizes.read_bytes
        start = npy.HEADER_BYTES + offset * item
        while tokens:
            end = self._split.file_bytes(shard)
            if block is None:
                begin, most = start, BLOCK_BYTES
            else:
                begin, most = start // block * block, block
            stop = min(begin + most, end)
            if block is None:
                stop = min(stop, start + tokens * item)
            here = min((stop - start) // item, tokens)
            yield (shard, begin, stop), start - begin, here
            tokens -= here
            start += here * item
            if start == end:
                shard, start = shard + 1, npy.HEADER_BYTES

    def _fetched(self, needed: _Range) -> Future[_Content]:
        """The cached or pending content, or a new request; reads ahead if blocks are in order."""
        with self._lock:
            found = self._request(needed)
            self._read(needed)
            if self.sizes.ahead and self._before(needed) in self._kept:
                following = self._after(needed)
                for _ in range(self.sizes.ahead):
                    if following is None:
                        break
                    if following not in self._kept:
                        self._request(following)
                    following = self._after(following)
        return found

    def _request(self, needed: _Range) -> Future[_Content]:
        """As `_fetched`, without reading ahead. The caller must hold the lock."""
        found = self._kept.get(needed)
        # A failed request is repeated.
        if found is not None and found.done() and found.exception():
            self._drop(needed)
            found = None
        if found is None:
            files = self._files
            found = self._kept[needed] = submit(lambda: files.read(*needed))
            self._kept_bytes += _bytes(needed)
            while self._kept_bytes > self.sizes.cache_bytes and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
        elif self.sizes.read_bytes is not None:
            # Blocks are used many times, samples once: those are dropped in the order of requests.
            self._kept.move_to_end(needed)
        return found

    def _drop(self, needed: _Range) -> None:
        del self._kept[needed]
        self._kept_bytes -= _bytes(needed)
        self._read(needed)

    def _read(self, needed: _Range) -> None:
        """Counts a request as no longer unread."""
        if needed in self._unread:
            self._unread.remove(needed)
            self._unread_bytes -= _bytes(needed)

    def _before(self, block: _Range) -> _Range | None:
        """The block before a block; None before the first one."""
        shard, start, _ = block
        if start:
            return self._block(shard, start - 1)
        return self._block(shard - 1, self._split.file_bytes(shard - 1) - 1) if shard else None

    def _after(self, block: _Range) -> _Range | None:
        shard, _, stop = block
        if stop < self._split.file_bytes(shard):
            return self._block(shard, stop)
        return self._block(shard + 1, 0) if shard + 1 < self._split.shards else None

    def _block(self, shard: int, byte: int) -> _Range:
        size = self.sizes.read_bytes or BLOCK_BYTES
        start = byte // size * size
        return shard, start, min(start + size, self._split.file_bytes(shard))


def _bytes(needed: _Range) -> int:
    return needed[2] - needed[1]
