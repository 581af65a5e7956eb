"""The requests to far storage that this process has in flight, of all its readers together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")

# A request waits some 30 ms, so this many are needed for 2,000 per second, with some to spare.
REQUESTS = 96


class _Threads:
    """Up to `REQUESTS` threads, started as needed. They do not keep the interpreter from exiting.

    The standard library's pool waits at the exit for all that was submitted, and requests are
    repeated for minutes while the network is down.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._unfinished = self._started = 0

    def submit(self, action: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._lock:
            self._unfinished += 1
            start = self._started < min(self._unfinished, REQUESTS)
        self._waiting.put((future, action))
        if start:
            threading.Thread(target=self._run, name="fineshards-fetch", daemon=True).start()
        return future

    def _run(self) -> None:
        # Counted here: the handler of a signal may raise in the thread that starts this one.
        with self._lock:
            if self._started >= REQUESTS:
                return
            self._started += 1
        while True:
            future, action = self._waiting.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(action())
                except BaseException as error:
                    future.set_exception(error)
            # Else they would live until the next request.
            del future, action
            with self._lock:
                self._unfinished -= 1


_threads = _Threads()


def _start_again() -> None:
    global _threads
    _threads = _Threads()


# A child has its parent's queue, but not the threads that would empty it.
os.register_at_fork(after_in_child=_start_again)


def submit(action: Callable[[], Result]) -> Future[Result]:
    """Runs an action, which sends one request, as soon as fewer than `REQUESTS` are in flight."""
    return _threads.submit(action)
