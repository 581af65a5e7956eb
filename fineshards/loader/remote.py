"""Shards on object storage: read in blocks, many at a time, the last used of which are kept.

A request takes tens of milliseconds, however little it asks for. So what is read in order, or in
any order within a few shards (`window` of BatchLoader), wants blocks of megabytes, each fetched
once; and what jumps about in a whole dataset wants blocks of about a sample.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.split_shards import Split
from fineshards.shards import npy

# Requests at a time: enough to fill a machine's network with blocks of megabytes, and for some
# hundred samples a second with small ones.
_REQUESTS = 16

_Block = tuple[int, int]


class RemoteShards:
    """Reads runs of tokens from shards by ranges. Threads may share it; processes may not.

    block_bytes: what a request fetches; cache_bytes: what is kept. Up to `_REQUESTS` blocks more
    are in memory while they are in use.
    """

    def __init__(self, split: Split, block_bytes: int, cache_bytes: int) -> None:
        self._split = split
        # Whole tokens, in files whose header is a whole number of tokens too.
        self._block_bytes = -(-block_bytes // npy.HEADER_BYTES) * npy.HEADER_BYTES
        self._most_blocks = max(1, cache_bytes // self._block_bytes)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[_Block, Future[bytes]] = OrderedDict()
        self._open: dict[int, tuple[BinaryIO, threading.Lock]] = {}
        self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="fineshards-gather")
        # Of its own, since a thread that waits for a block must not keep it from being fetched.
        self._fetching = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="fineshards-fetch")

    def fill(
        self,
        rows: npt.NDArray[np.uint32],
        shards: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        """Copies into each row the tokens that begin at an offset in a shard, across its end.

        Raises OutputError for a shard that is missing, damaged or out of reach.
        """
        size = self._split.dtype.itemsize
        starts = [npy.HEADER_BYTES + offset * size for offset in offsets]

        def block_of(row: int) -> _Block:
            return shards[row], starts[row] // self._block_bytes

        def fill_from(group: list[int]) -> None:
            for row in group:
                self._fill(rows[row], shards[row], starts[row])

        order = sorted(range(len(rows)), key=block_of)
        groups = [list(group) for _, group in groupby(order, block_of)]
        if len(groups) == 1:
            fill_from(groups[0])
        else:
            for _ in self._pool.map(fill_from, groups):
                pass

    def close(self) -> None:
        """Ends the threads, when the requests under way have ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._fetching.shutdown(wait=False, cancel_futures=True)

    def _fill(self, row: npt.NDArray[np.uint32], shard: int, start: int) -> None:
        dtype, filled = self._split.dtype, 0
        while filled < len(row):
            stop = min(
                start + (len(row) - filled) * dtype.itemsize,
                (start // self._block_bytes + 1) * self._block_bytes,
                self._split.file_bytes(shard),
            )
            block = self._block((shard, start // self._block_bytes))
            part = np.frombuffer(
                block,
                dtype,
                count=(stop - start) // dtype.itemsize,
                offset=start % self._block_bytes,
            )
            row[filled : filled + len(part)] = part
            filled += len(part)
            start = stop
            if start == self._split.file_bytes(shard):
                shard, start = shard + 1, npy.HEADER_BYTES

    def _block(self, block: _Block) -> bytes:
        """A block's bytes; asks for the next one too where blocks are read in order."""
        with self._lock:
            wanted = self._request(block)
            if self._before(block) in self._blocks and (following := self._after(block)):
                self._request(following)
        return wanted.result()

    def _request(self, block: _Block) -> Future[bytes]:
        """A block that is there or on its way; for a holder of the lock."""
        found = self._blocks.pop(block, None)
        # What failed is tried again.
        if found is None or (found.done() and (found.cancelled() or found.exception())):
            found = self._fetching.submit(self._fetch, block)
        self._blocks[block] = found
        if len(self._blocks) > self._most_blocks:
            self._blocks.popitem(last=False)
        return found

    def _before(self, block: _Block) -> _Block | None:
        shard, number = block
        if number > 0:
            return shard, number - 1
        return (shard - 1, self._last(shard - 1)) if shard > 0 else None

    def _after(self, block: _Block) -> _Block | None:
        shard, number = block
        if number < self._last(shard):
            return shard, number + 1
        return (shard + 1, 0) if shard + 1 < self._split.shards else None

    def _last(self, shard: int) -> int:
        return (self._split.file_bytes(shard) - 1) // self._block_bytes

    def _fetch(self, block: _Block) -> bytes:
        shard, number = block
        file, lock = self._file(shard)
        with lock:
            start = number * self._block_bytes
            file.seek(start)
            content = file.read(self._block_bytes)
        expected = min(self._block_bytes, self._split.file_bytes(shard) - start)
        if len(content) != expected:
            path = self._split.storage.path(self._split.shard_name(shard))
            raise OutputError(
                f"the shard {path} gave {len(content):,} bytes from byte {start:,} on, expected "
                f"{expected:,}: it changed while it was read. Nobody may write there."
            )
        return content

    def _file(self, shard: int) -> tuple[BinaryIO, threading.Lock]:
        """A shard, opened and checked, and the lock of its place."""
        with self._lock:
            found = self._open.get(shard)
        if found is None:
            # One byte of read-ahead: a read of a block is then one request of just its bytes.
            file = self._split.storage.open(self._split.shard_name(shard), read_ahead=1)
            size = file.seek(0, 2)
            file.seek(0)
            self._split.check(shard, size, file.read(npy.HEADER_BYTES))
            with self._lock:
                found = self._open.setdefault(shard, (file, threading.Lock()))
        return found
