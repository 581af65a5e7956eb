"""A background thread that computes the next items while the caller uses the last one.

Handing an item from one thread to another takes a good part of the time that reading a small batch
takes. So the thread works only for a caller who is away for a while between two items. A caller who
comes back at once computes the items itself: there is nothing that could go on in the meantime.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from time import perf_counter
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Seconds that `close` waits for the item in progress. After that, the thread ends on its own.
_PATIENCE = 5.0
# A caller who is away for fewer seconds gains less from the thread than handing over costs.
_AWAY = 1e-3


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Shared(Generic[Item]):
    """What the thread and the caller use; the lock is for the iterator, and keeps the order."""

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self.depth = depth
        self.ready: deque[Item | _Failure] = deque()
        self.lock = threading.Lock()
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.stopped = threading.Event()
        self._items = items

    def compute(self) -> Item | _Failure:
        """The next item; the caller must hold the lock."""
        try:
            return next(self._items)
        except BaseException as error:
            # Including StopIteration.
            return _Failure(error)


class Prefetcher(Generic[Item]):
    """Iterates over `items` with the help of a thread that is `depth` items ahead (at least 1).

    An error of the iterator is raised here in place of its item. The thread ends when the iterator
    ends, on `close`, when this object is garbage collected, and when the interpreter exits.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._shared = _Shared(items, depth)
        # The thread must not refer to this object, or it would never be collected.
        thread = threading.Thread(
            target=_work_ahead, args=(self._shared,), name="fineshards-prefetch", daemon=True
        )
        self._end = weakref.finalize(self, _stop, thread, self._shared, os.getpid())
        self._returned = perf_counter()
        self._shared.wake.put(None)
        thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if not self._end.alive:
            raise StopIteration
        shared, away = self._shared, perf_counter() - self._returned
        if shared.ready:
            item = shared.ready.popleft()
        else:
            with shared.lock:
                # Perhaps the thread has computed it while this one waited for the lock.
                item = shared.ready.popleft() if shared.ready else shared.compute()
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        if away >= _AWAY:
            shared.wake.put(None)
        self._returned = perf_counter()
        return item

    def close(self) -> None:
        """Stops the thread and discards the items it has ready."""
        self._end()


def _work_ahead(shared: _Shared[Item]) -> None:
    """Each time it is woken, computes items until `depth` are ready, but no more than that many."""
    while True:
        shared.wake.get()
        for _ in range(shared.depth):
            with shared.lock:
                if shared.stopped.is_set():
                    return
                if len(shared.ready) >= shared.depth:
                    break
                item = shared.compute()
                shared.ready.append(item)
            if isinstance(item, _Failure):
                return


def _stop(thread: threading.Thread, shared: _Shared[Item], process: int) -> None:
    # A forked child has no such thread, and its copy of the locks may never be released.
    if process == os.getpid():
        shared.stopped.set()
        shared.wake.put(None)
        if thread is not threading.current_thread():
            thread.join(_PATIENCE)
