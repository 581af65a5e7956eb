"""A file whose bytes are fetched by range."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

from fineshards.storage.ranges.planned_ranges import PlannedRanges


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
