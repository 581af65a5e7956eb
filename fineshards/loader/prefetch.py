"""A background thread that makes the next items while the last one is in use."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")

# How long an end waits for an item that is being made. The thread then ends by itself, later.
_PATIENCE = 5.0


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher(Generic[Item]):
    """Iterates over `items` in a thread of its own, `depth` items ahead (from 1 on).

    What the iterator raises is raised here, where its item would have been. The thread ends with
    the iterator, by `close`, when nobody refers to this object any more, and when Python ends.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._ready: SimpleQueue[Item | _Failure] = SimpleQueue()
        self._free = threading.Semaphore(depth)
        stopped = threading.Event()
        # The thread must not refer to this object, or it would never be garbage.
        thread = threading.Thread(
            target=_produce,
            args=(items, self._ready, self._free, stopped),
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
        item = self._ready.get()
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        self._free.release()
        return item

    def close(self) -> None:
        """Ends the thread; what it has made is thrown away."""
        self._end()


def _produce(
    items: Iterator[Item],
    ready: SimpleQueue[Item | _Failure],
    free: threading.Semaphore,
    stopped: threading.Event,
) -> None:
    try:
        while free.acquire() and not stopped.is_set():
            ready.put(next(items))
    except BaseException as error:
        # StopIteration too.
        ready.put(_Failure(error))


def _stop(
    thread: threading.Thread, free: threading.Semaphore, stopped: threading.Event, process: int
) -> None:
    # A fork has no such thread, and its locks may be held for ever.
    if process == os.getpid():
        stopped.set()
        free.release()
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
