"""A file whose bytes are fetched by range."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple, cast

from fineshards.storage.ranges.request_threads import submit

# A request takes as long as receiving a few megabytes: less than that is read and dropped, and
# pieces are large enough that the wait counts little, and small enough to be held in memory.
LARGEST_HOLE = 1 << 20
PIECE_BYTES = 16 << 20
# Pieces in flight after the one that is read.
_AHEAD = 2


class Piece(NamedTuple):
    """Bytes `[start, stop)`, one request. wanted: how many of them are in a range."""

    start: int
    stop: int
    wanted: int


def pieces_of(ranges: Iterable[tuple[int, int]]) -> list[Piece]:
    """Ranges `[start, stop)`, merged over small holes and cut into requests of equal size.

    The ranges must not overlap. The pieces are in the order of the file.

    Example:
        >>> pieces_of([(0, 10), (20, 30), (9 << 20, (9 << 20) + 5)])
        [Piece(start=0, stop=30, wanted=20), Piece(start=9437184, stop=9437189, wanted=5)]
    """
    ordered = sorted((start, stop) for start, stop in ranges if start < stop)
    merged: list[list[tuple[int, int]]] = []
    for each in ordered:
        if merged and each[0] - merged[-1][-1][1] <= LARGEST_HOLE:
            merged[-1].append(each)
        else:
            merged.append([each])
    return [piece for run in merged for piece in _cut(run)]


def _cut(run: list[tuple[int, int]]) -> list[Piece]:
    first, last = run[0][0], run[-1][1]
    count = -(-(last - first) // PIECE_BYTES)
    cuts = [first + (last - first) * number // count for number in range(count + 1)]
    return [
        Piece(start, stop, sum(max(min(stop, to) - max(start, at), 0) for at, to in run))
        for start, stop in pairwise(cuts)
    ]


class PlannedRanges:
    """Ranges of a file that are each read once, in any order, a part at a time.

    download: returns bytes `[start, stop)`; called by several threads. A piece is kept until all
    that is wanted of it has been read.
    """

    def __init__(
        self, ranges: Iterable[tuple[int, int]], download: Callable[[int, int], bytes]
    ) -> None:
        self._pieces = pieces_of(ranges)
        self._left = [piece.wanted for piece in self._pieces]
        self._download = download
        self._fetched: dict[int, Future[bytes]] = {}

    def read(self, start: int, stop: int) -> bytes | None:
        """Bytes `[start, stop)`; None if they were not planned, or have been read before.

        Raises what the download raised.
        """
        numbers = [
            number
            for number, piece in enumerate(self._pieces)
            if piece.start < stop and start < piece.stop
        ]
        parts = [self._part(number, start, stop) for number in numbers if self._left[number] > 0]
        content = b"".join(parts)
        return content if len(content) == stop - start else None

    def close(self) -> None:
        """Drops what was fetched, and does not start what has not begun."""
        for future in self._fetched.values():
            future.cancel()
        self._fetched.clear()
        self._left = [0] * len(self._left)

    def _part(self, number: int, start: int, stop: int) -> bytes:
        """What a piece has of bytes `[start, stop)`."""
        for ahead in range(number, min(number + 1 + _AHEAD, len(self._pieces))):
            if ahead not in self._fetched and self._left[ahead] == self._pieces[ahead].wanted:
                first, last, _ = self._pieces[ahead]
                self._fetched[ahead] = submit(partial(self._download, first, last))
        piece = self._pieces[number]
        content = self._fetched[number].result()
        part = content[max(start - piece.start, 0) : stop - piece.start]
        self._left[number] -= len(part)
        if self._left[number] <= 0:
            del self._fetched[number]
        return part


class RangeReader(io.RawIOBase):
    """A seekable file; each read that is not planned is one request for exactly those bytes.

    size: of the whole file, in bytes. download: returns bytes `[start, stop)`, all of one version;
    several threads call it where reads are planned. close: ends what downloads need.
    """

    def __init__(
        self,
        size: int,
        download: Callable[[int, int], bytes],
        close: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._size = size
        self._download = download
        self._close = close
        self._position = 0
        self._planned = PlannedRanges([], download)

    def plan(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Says which bytes `[start, stop)` will be read, each once, so that few requests get them.

        Ranges that are not of this file, by a damaged footer, are not planned.
        """
        if all(0 <= start <= stop <= self._size for start, stop in ranges):
            self._planned = PlannedRanges(ranges, self._download)

    def close(self) -> None:
        self._planned.close()
        self._close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def buffered(self, read_ahead: int) -> BinaryIO:
        """This file with requests of `read_ahead` bytes at least; 0 for exactly the bytes read."""
        return cast(BinaryIO, io.BufferedReader(self, read_ahead) if read_ahead else self)

    def readall(self) -> bytes:
        """See io.RawIOBase. Takes one request."""
        return self._next(max(self._size - self._position, 0))

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase. Takes one request."""
        content = self._next(max(min(len(buffer), self._size - self._position), 0))
        buffer[: len(content)] = content
        return len(content)

    def _next(self, count: int) -> bytes:
        start = self._position
        content = self._planned.read(start, start + count) if count else b""
        if content is None:
            content = self._download(start, start + count)
        self._position += count
        return content
