"""Files that are read by ranges of their bytes, and the threads that send the requests."""

import io
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeVar, cast

# A request takes as long as receiving a few megabytes: less than that is read and dropped, and
# pieces are large enough that the wait counts little, and small enough to be held in memory.
LARGEST_HOLE = 1 << 20
PIECE_BYTES = 16 << 20
# Pieces in flight after the one that is read.
_AHEAD = 2
# Requests in flight, of all readers of this process together.
REQUESTS = 96

Result = TypeVar("Result")


@dataclass(slots=True)
class Piece:
    """Bytes `[start, stop)`, one request. left: how many of them are still to be read."""

    start: int
    stop: int
    left: int
    fetched: Future[bytes] | None = None


def pieces_of(ranges: Iterable[tuple[int, int]]) -> list[Piece]:
    """Ranges `[start, stop)`, merged over small holes and cut into requests of equal size.

    The ranges must not overlap. The pieces are in the order of the file.
    """
    merged: list[list[tuple[int, int]]] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if merged and start - merged[-1][-1][1] <= LARGEST_HOLE:
            merged[-1].append((start, stop))
        else:
            merged.append([(start, stop)])
    pieces = []
    for run in merged:
        first, size = run[0][0], run[-1][1] - run[0][0]
        count = -(-size // PIECE_BYTES)
        for number in range(count):
            start, stop = (first + size * each // count for each in (number, number + 1))
            left = sum(max(min(stop, to) - max(start, at), 0) for at, to in run)
            pieces.append(Piece(start, stop, left))
    return pieces


class RangeReader(io.RawIOBase):
    """A seekable file of one version; each read that is not planned is one request.

    size: of the whole file, in bytes. read_at: returns bytes `[start, stop)`; threads share it.
    """

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self.size, self.read_at = size, read_at
        self._position = 0
        self._pieces: list[Piece] = []

    def plan(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Says which bytes `[start, stop)` will be read, each once, so that few requests get them.

        Ranges that are not of this file, by a damaged footer, are not planned.
        """
        ranges = list(ranges)
        if all(0 <= start <= stop <= self.size for start, stop in ranges):
            self._pieces = pieces_of(ranges)

    def buffered(self, read_ahead: int) -> BinaryIO:
        """This file with requests of `read_ahead` bytes at least; 0 for exactly the bytes read."""
        return cast(BinaryIO, io.BufferedReader(self, read_ahead) if read_ahead else self)

    def close(self) -> None:
        for piece in self._pieces:
            if piece.fetched is not None:
                piece.fetched.cancel()
        self._pieces = []
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readall(self) -> bytes:
        return self._next(self.size)

    def readinto(self, buffer: Any) -> int:
        content = self._next(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _next(self, most: int) -> bytes:
        start = self._position
        stop = max(min(start + most, self.size), start)
        content = self._planned(start, stop)
        if len(content) != stop - start:
            content = self.read_at(start, stop)
        self._position = stop
        return content

    def _planned(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`, fewer if not all were planned, or some have been read before."""
        parts = []
        for number, piece in enumerate(self._pieces):
            if not (piece.left > 0 and piece.start < stop and start < piece.stop):
                continue
            for each in self._pieces[number : number + 1 + _AHEAD]:
                if each.fetched is None and each.left > 0:
                    each.fetched = submit(partial(self.read_at, each.start, each.stop))
            assert piece.fetched is not None
            part = piece.fetched.result()[max(start - piece.start, 0) : stop - piece.start]
            piece.left -= len(part)
            if piece.left <= 0:
                piece.fetched = None
            parts.append(part)
        return b"".join(parts)


class _Threads:
    """Threads, started as needed. They do not keep the interpreter from exiting.

    The standard library's pool waits at the exit for all that was submitted, and requests are
    repeated for minutes while the network is down.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self.unfinished = self.started = 0

    def run(self) -> None:
        # Counted here: the handler of a signal may raise in the thread that starts this one.
        with self.lock:
            if self.started >= REQUESTS:
                return
            self.started += 1
        while True:
            future, action = self.waiting.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(action())
                except BaseException as error:
                    future.set_exception(error)
            # Else they would live until the next request.
            del future, action
            with self.lock:
                self.unfinished -= 1


_threads = _Threads()


def _start_again() -> None:
    global _threads
    _threads = _Threads()


# A child has its parent's queue, but not the threads that would empty it.
os.register_at_fork(after_in_child=_start_again)


def submit(action: Callable[[], Result]) -> Future[Result]:
    """Runs an action, which sends one request, as soon as fewer than `REQUESTS` are in flight."""
    threads, future = _threads, Future[Result]()
    with threads.lock:
        threads.unfinished += 1
        start = threads.started < min(threads.unfinished, REQUESTS)
    threads.waiting.put((future, action))
    if start:
        threading.Thread(target=threads.run, name="fineshards-fetch", daemon=True).start()
    return future
