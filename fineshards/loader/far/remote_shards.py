"""Samples on far storage: a request for exactly the bytes of each, many at a time.

A request takes tens of milliseconds, however few bytes it asks for. So all requests of a batch are
in flight together, also those of batches that will be read soon. Samples that follow each other
are one request.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards import npy
from fineshards.storage.ranges import RangeReader, submit

# Of the largest request.
BLOCK_BYTES = 8 << 20
# Of what was requested ahead and not read yet.
_AHEAD_BYTES = 64 << 20
# What was not read after as many further calls of `request` will not be: a loader began again.
_LATEST_CALLS = 256


class _Part(NamedTuple):
    """Bytes `[start, stop)` of a shard's file: a sample, or what one shard has of it."""

    shard: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start


class _Request(NamedTuple):
    """A request for consecutive parts. start: its first byte. call: of `request`, from 1."""

    content: Future[bytes]
    start: int
    call: int


class FarShards:
    """A split's shards on far storage: opened and checked once, then read in ranges of bytes.

    Threads can share it.
    """

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        self._open: dict[int, Future[RangeReader]] = {}

    def read(self, shard: int, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)` of a shard's file, by one request.

        Raises OutputError if the shard is missing, damaged or unreachable.
        """
        opened = self._opened(shard)
        try:
            return opened.result().read_at(start, stop)
        except OutputError:
            # A redaction or a repair may have replaced it since it was opened.
            self._forget(shard, opened)
            return self._opened(shard).result().read_at(start, stop)

    def _opened(self, shard: int) -> Future[RangeReader]:
        """The opened shard. The first thread that wants it opens it, and the others wait."""
        mine: Future[RangeReader] = Future()
        try:
            opened = self._open.setdefault(shard, mine)
            if opened is mine:
                ranges = self._split.storage.open_ranges(self._split.shard_name(shard))
                header = ranges.read_at(0, min(ranges.size, npy.HEADER_BYTES))
                self._split.check(shard, ranges.size, header)
                mine.set_result(ranges)
            return opened
        except BaseException as error:
            self._forget(shard, mine)
            if not mine.done():
                mine.set_exception(error)
            raise

    def _forget(self, shard: int, opened: Future[RangeReader]) -> None:
        if self._open.get(shard) is opened:
            self._open.pop(shard, None)


class RemoteShards:
    """Reads token ranges from shards. Threads can share a reader; processes cannot."""

    def __init__(self, split: SplitShards) -> None:
        self._split = split
        self._files = FarShards(split)
        self._lock = threading.Lock()
        # What was asked for by `request` and not read yet.
        self._ahead: dict[_Part, _Request] = {}
        self._ahead_bytes = self._calls = 0

    def join(
        self, shards: Sequence[int], begins: Sequence[int], stops: Sequence[int]
    ) -> npt.NDArray[np.unsignedinteger]:
        """Tokens `[begins[i], stops[i])` of shard `shards[i]`, and of the next ones, joined.

        Raises OutputError if a shard is missing, damaged or unreachable.
        """
        parts = self._parts(shards, begins, stops)
        with self._lock:
            taken = {part: self._taken(part) for part in parts if part in self._ahead}
        # A failed request is repeated.
        asked = {
            part: request
            for part, request in taken.items()
            if not (request.content.done() and request.content.exception())
        }
        for run in _runs(parts, set(asked)):
            if run[0] not in asked:
                asked.update(dict.fromkeys(run, self._requested(run)))
        out, filled = np.empty(sum(part.bytes for part in parts), np.uint8), 0
        for part in parts:
            content, at = asked[part].content.result(), part.start - asked[part].start
            out[filled : filled + part.bytes] = np.frombuffer(content, np.uint8, part.bytes, at)
            filled += part.bytes
        return out.view(self._split.dtype)

    def request(self, shards: Sequence[int], begins: Sequence[int], stops: Sequence[int]) -> None:
        """Asks for tokens that will be joined soon, as many as there is room for."""
        with self._lock:
            self._calls += 1
            while self._ahead:
                oldest = next(iter(self._ahead))
                if self._calls - self._ahead[oldest].call <= _LATEST_CALLS:
                    break
                self._taken(oldest)
            for run in _runs(self._parts(shards, begins, stops), self._ahead):
                needed = sum(part.bytes for part in run)
                if run[0] not in self._ahead and self._ahead_bytes + needed <= _AHEAD_BYTES:
                    self._ahead.update(dict.fromkeys(run, self._requested(run)))
                    self._ahead_bytes += needed

    def close(self) -> None:
        """Forgets what was requested."""
        with self._lock:
            self._ahead.clear()
            self._ahead_bytes = 0

    def _parts(
        self, shards: Sequence[int], begins: Sequence[int], stops: Sequence[int]
    ) -> list[_Part]:
        """The parts of ranges of tokens, in order."""
        parts, item = [], self._split.dtype.itemsize
        for shard, begin, stop in zip(shards, begins, stops, strict=True):
            start, left = npy.HEADER_BYTES + begin * item, (stop - begin) * item
            while left:
                size = min(left, BLOCK_BYTES, self._split.file_bytes(shard) - start)
                if size > 0:
                    parts.append(_Part(shard, start, start + size))
                left -= size
                start += size
                if start == self._split.file_bytes(shard):
                    shard, start = shard + 1, npy.HEADER_BYTES
        return parts

    def _requested(self, run: Sequence[_Part]) -> _Request:
        shard, start, stop = run[0].shard, run[0].start, run[-1].stop
        content = submit(partial(self._files.read, shard, start, stop))
        return _Request(content, start, self._calls)

    def _taken(self, part: _Part) -> _Request:
        """What was requested for a part, which is not ahead any more. The lock is held."""
        self._ahead_bytes -= part.bytes
        return self._ahead.pop(part)


def _runs(parts: Sequence[_Part], asked: Collection[_Part]) -> Iterator[list[_Part]]:
    """Parts that one request fetches: each one begins where the one before ends, or before that.

    asked: parts that were requested already, each of which is alone.
    """
    run: list[_Part] = []
    for part in parts:
        if run and (
            part in asked
            or run[0] in asked
            or part.shard != run[0].shard
            or not run[-1].start <= part.start <= run[-1].stop <= part.stop
            or part.stop - run[0].start > BLOCK_BYTES
        ):
            yield run
            run = []
        run.append(part)
    if run:
        yield run
