"""A background thread that computes the next items while the caller uses the last one.

Handing an item from one thread to another takes a good part of the time that reading a small batch
takes. So the thread works only for a caller who is away for a while between two items. A caller who
comes back at once computes the items itself: there is nothing that could go on in the meantime.
"""

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
    """State shared by the thread and the caller.

    turn: holds the iterator. The one that takes it out computes an item, adds it to `ready` and
    puts it back, so items stay in order. It is no lock: an exception of a signal's handler may
    leave it empty, and then `stop` still ends the thread.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self.depth = depth
        self.ready: deque[Item | _Failure] = deque()
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.turn: SimpleQueue[Iterator[Item] | None] = SimpleQueue()
        self.turn.put(items)
        self.stopped = False

    def stop(self) -> None:
        """Lets the thread end after the item in progress."""
        self.stopped = True
        self.wake.put(None)
        self.turn.put(None)


def _compute(items: Iterator[Item]) -> Item | _Failure:
    try:
        return next(items)
    except BaseException as error:
        # Including StopIteration.
        return _Failure(error)


class Prefetcher(Generic[Item]):
    """Iterates over `items` with the help of a thread that is `depth` items ahead (at least 1).

    The first item is computed by the caller, so that it does not wait for the thread to start. An
    error of the iterator is raised here in place of its item. The thread ends when the iterator
    ends, on `close`, when this object is garbage collected, and when the interpreter exits.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._shared = _Shared(items, depth)
        # The thread must not refer to this object, or it would never be collected.
        self._thread = threading.Thread(
            target=_work_ahead, args=(self._shared,), name="fineshards-prefetch", daemon=True
        )
        self._process = os.getpid()
        self._started = False
        weakref.finalize(self, _stop, self._thread, self._shared, self._process)
        self._returned = perf_counter()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        shared, away = self._shared, perf_counter() - self._returned
        if shared.stopped:
            raise StopIteration
        if shared.ready:
            item = shared.ready.popleft()
        else:
            items = shared.turn.get()
            if items is None:  # the handler of a signal has closed it
                raise StopIteration
            # Perhaps the thread has computed it while this one waited for its turn.
            item = shared.ready.popleft() if shared.ready else _compute(items)
            shared.turn.put(items)
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        if not self._started:
            self._started = True
            shared.wake.put(None)
            self._thread.start()
        elif away >= _AWAY:
            shared.wake.put(None)
        self._returned = perf_counter()
        return item

    def close(self) -> None:
        """Stops the thread and discards the items it has ready."""
        _stop(self._thread, self._shared, self._process)


def _work_ahead(shared: _Shared[Item]) -> None:
    """Each time it is woken, computes items until `depth` are ready, but no more than that many."""
    while True:
        shared.wake.get()
        for _ in range(shared.depth):
            items = shared.turn.get()
            if items is None or shared.stopped:
                return
            item: Item | _Failure | None = None
            if len(shared.ready) < shared.depth:
                item = _compute(items)
                shared.ready.append(item)
            shared.turn.put(items)
            if item is None:
                break
            if isinstance(item, _Failure):
                return


def _stop(thread: threading.Thread, shared: _Shared[Item], process: int) -> None:
    # A forked child has no such thread, and its copy of the queues may never be released.
    if process == os.getpid():
        shared.stop()
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(_PATIENCE)
