"""Shards on object storage: read in chunks, in parallel, with a cache of recently used chunks.

A request takes tens of milliseconds, however few bytes it asks for. Reading in order, or shuffling
within a few shards (`BatchLoader(shuffle_shards=…)`), works best with chunks of megabytes, each
fetched once. Shuffling a whole dataset works best with chunks of about the size of a sample.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import BinaryIO

import numpy as np

from fineshards.errors import OutputError
from fineshards.loader.sample_sources import Samples
from fineshards.loader.split_shards import SplitShards
from fineshards.shards import npy

# Requests in parallel: enough to saturate a machine's network with chunks of megabytes, or to read
# a few hundred samples per second with small ones.
_REQUESTS = 16

_Chunk = tuple[int, int]


class RemoteShards:
    """Reads token ranges from shards chunk by chunk. Threads can share it; processes cannot.

    read_bytes: bytes per request. cache_bytes: size of the cache; chunks in use need up to
    `_REQUESTS` chunks more.
    """

    def __init__(self, split: SplitShards, read_bytes: int, cache_bytes: int) -> None:
        self._split = split
        # A multiple of the header, so that chunks hold whole tokens.
        self._read_bytes = -(-read_bytes // npy.HEADER_BYTES) * npy.HEADER_BYTES
        self._max_chunks = max(1, cache_bytes // self._read_bytes)
        self._lock = threading.Lock()
        self._chunks: OrderedDict[_Chunk, Future[bytes]] = OrderedDict()
        self._open: dict[int, tuple[BinaryIO, threading.Lock]] = {}
        self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="fineshards-gather")
        # A separate pool: threads that wait for a chunk must not delay its fetch.
        self._fetching = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="fineshards-fetch")

    def fill(
        self,
        out: Samples,
        rows: Sequence[int],
        shards: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        """Fills `out[rows[i]]` from token `offsets[i]` of shard `shards[i]`, and later shards.

        Raises OutputError if a shard is missing, damaged or unreachable.
        """
        size = self._split.dtype.itemsize
        starts = [npy.HEADER_BYTES + offset * size for offset in offsets]

        def chunk_of(at: int) -> _Chunk:
            return shards[at], starts[at] // self._read_bytes

        def fill_from(group: list[int]) -> None:
            for at in group:
                self._fill(out[rows[at]], shards[at], starts[at])

        order = sorted(range(len(rows)), key=chunk_of)
        groups = [list(group) for _, group in groupby(order, chunk_of)]
        if len(groups) == 1:
            fill_from(groups[0])
        else:
            for _ in self._pool.map(fill_from, groups):
                pass

    def close(self) -> None:
        """Stops the threads once the requests in flight have ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._fetching.shutdown(wait=False, cancel_futures=True)

    def _fill(self, row: Samples, shard: int, start: int) -> None:
        dtype, filled = self._split.dtype, 0
        while filled < len(row):
            stop = min(
                start + (len(row) - filled) * dtype.itemsize,
                (start // self._read_bytes + 1) * self._read_bytes,
                self._split.file_bytes(shard),
            )
            chunk = self._chunk((shard, start // self._read_bytes))
            part = np.frombuffer(
                chunk,
                dtype,
                count=(stop - start) // dtype.itemsize,
                offset=start % self._read_bytes,
            )
            row[filled : filled + len(part)] = part
            filled += len(part)
            start = stop
            if start == self._split.file_bytes(shard):
                shard, start = shard + 1, npy.HEADER_BYTES

    def _chunk(self, chunk: _Chunk) -> bytes:
        """A chunk's bytes; also requests the next chunk if chunks are being read in order."""
        with self._lock:
            wanted = self._request(chunk)
            if self._before(chunk) in self._chunks and (following := self._after(chunk)):
                self._request(following)
        return wanted.result()

    def _request(self, chunk: _Chunk) -> Future[bytes]:
        """The cached or pending fetch of a chunk, or a new one. The caller must hold the lock."""
        found = self._chunks.pop(chunk, None)
        # A failed fetch is retried.
        if found is None or (found.done() and (found.cancelled() or found.exception())):
            found = self._fetching.submit(self._fetch, chunk)
        self._chunks[chunk] = found
        if len(self._chunks) > self._max_chunks:
            self._chunks.popitem(last=False)
        return found

    def _before(self, chunk: _Chunk) -> _Chunk | None:
        shard, number = chunk
        if number > 0:
            return shard, number - 1
        return (shard - 1, self._last(shard - 1)) if shard > 0 else None

    def _after(self, chunk: _Chunk) -> _Chunk | None:
        shard, number = chunk
        if number < self._last(shard):
            return shard, number + 1
        return (shard + 1, 0) if shard + 1 < self._split.shards else None

    def _last(self, shard: int) -> int:
        return (self._split.file_bytes(shard) - 1) // self._read_bytes

    def _fetch(self, chunk: _Chunk) -> bytes:
        shard, _ = chunk
        try:
            return self._read(chunk)
        except OutputError:
            # An append, a redaction or a repair may have replaced it since it was opened.
            with self._lock:
                self._open.pop(shard, None)
            return self._read(chunk)

    def _read(self, chunk: _Chunk) -> bytes:
        shard, number = chunk
        file, lock = self._file(shard)
        start = number * self._read_bytes
        expected = min(self._read_bytes, self._split.file_bytes(shard) - start)
        with lock:
            file.seek(start)
            content = file.read(expected)
        if len(content) != expected:
            path = self._split.storage.path(self._split.shard_name(shard))
            raise OutputError(
                f"the shard {path} returned {len(content):,} bytes from byte {start:,}, expected "
                f"{expected:,}: it changed while it was read. Do not modify a finished dataset."
            )
        return content

    def _file(self, shard: int) -> tuple[BinaryIO, threading.Lock]:
        """An open, checked shard, and the lock for its file position."""
        with self._lock:
            found = self._open.get(shard)
        if found is None:
            # One byte of read-ahead makes each chunk read one request for exactly its bytes.
            file = self._split.storage.open(self._split.shard_name(shard), read_ahead=1)
            size = file.seek(0, 2)
            file.seek(0)
            self._split.check(shard, size, file.read(npy.HEADER_BYTES))
            with self._lock:
                found = self._open.setdefault(shard, (file, threading.Lock()))
        return found
