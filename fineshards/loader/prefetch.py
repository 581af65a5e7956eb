"""A background thread that computes the next items while the caller uses the last one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Seconds that `close` waits for the item in progress. After that, the thread ends on its own.
_PATIENCE = 5.0
# Items handed over at once. Each handing over costs two switches between threads, which take about
# as long as reading a third of a small batch.
_TOGETHER = 2


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher(Generic[Item]):
    """Iterates over `items` in a background thread, `depth` items ahead (at least 1).

    An error of the iterator is raised here in place of its item. The thread ends when the iterator
    ends, on `close`, when this object is garbage collected, and when the interpreter exits.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._ready: SimpleQueue[list[Item | _Failure]] = SimpleQueue()
        # One entry per item that may be computed. A semaphore takes several times as long.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._free.put(None)
        self._taken: list[Item | _Failure] = []
        stopped = threading.Event()
        # The thread must not refer to this object, or it would never be collected.
        thread = threading.Thread(
            target=_produce,
            args=(items, self._ready, self._free, stopped, min(depth, _TOGETHER)),
            name="fineshards-prefetch",
            daemon=True,
        )
        self._end = weakref.finalize(self, _stop, thread, self._free, stopped, os.getpid())
        thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if not self._end.alive:
            raise StopIteration
        if not self._taken:
            self._taken = self._ready.get()[::-1]
        item = self._taken.pop()
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        self._free.put(None)
        return item

    def close(self) -> None:
        """Stops the thread and discards the items it has ready."""
        self._end()


def _produce(
    items: Iterator[Item],
    ready: SimpleQueue[list[Item | _Failure]],
    free: SimpleQueue[None],
    stopped: threading.Event,
    together: int,
) -> None:
    made: list[Item | _Failure] = []
    try:
        while True:
            free.get()
            if stopped.is_set():
                return
            made.append(next(items))
            if len(made) == together:
                ready.put(made)
                made = []
    except BaseException as error:
        # Including StopIteration.
        ready.put([*made, _Failure(error)])


def _stop(
    thread: threading.Thread, free: SimpleQueue[None], stopped: threading.Event, process: int
) -> None:
    # A forked child has no such thread, and its copy of the locks may never be released.
    if process == os.getpid():
        stopped.set()
        free.put(None)
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
