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


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher(Generic[Item]):
    """Iterates over `items` in a background thread, `depth` items ahead (at least 1).

    An error of the iterator is raised here in place of its item. The thread ends when the iterator
    ends, on `close`, when this object is garbage collected, and when the interpreter exits.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._ready: SimpleQueue[Item | _Failure] = SimpleQueue()
        self._free = threading.Semaphore(depth)
        stopped = threading.Event()
        # The thread must not refer to this object, or it would never be collected.
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
        """Stops the thread and discards the items it has ready."""
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
        # Including StopIteration.
        ready.put(_Failure(error))


def _stop(
    thread: threading.Thread, free: threading.Semaphore, stopped: threading.Event, process: int
) -> None:
    # A forked child has no such thread, and its copy of the locks may never be released.
    if process == os.getpid():
        stopped.set()
        free.release()
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
