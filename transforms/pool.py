"""The worker processes of a local run. No Beam.

They are forked before Beam is imported, from a process that has loaded only what they need. So they
share the encoder's memory, and they work while Beam is imported. The launching process hands out
tasks and takes results; it does none of the work.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from fineshards.errors import FineshardsError
from fineshards.parent import end_with
from fineshards.shards.records import Block, SourceFile
from fineshards.transforms.tasks import DiscoverFile, Done, FinishBlock, Task, Worker
from fineshards.transforms.work import Work

# macOS's own libraries do not survive a fork.
_CONTEXT: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "fork")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_current: Pool | None = None


def current_pool() -> Pool | None:
    """The pool of this process; None where each step does its tasks itself."""
    return _current


@dataclass(frozen=True, slots=True)
class _Job:
    """A task whose result is asked for."""

    task: Task
    future: Future[Done]


@dataclass(slots=True)
class _Process:
    """A worker process; job: what it is working on, if anything."""

    process: Any
    connection: Connection
    job: _Job | None = None


class Pool:
    """Does tasks in `workers` processes while its context lasts.

    It begins by itself with `files`: it reads all footers, then finishes all blocks. Who submits
    one of these tasks gets the result that is there or on its way. After the first failure no other
    task is begun, and every result that is asked for is that failure.
    """

    def __init__(self, work: Work, workers: int, files: Sequence[SourceFile]) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        # Results that no step has asked for yet.
        self._unclaimed: dict[Task, Future[Done]] = {}
        self._failure: BaseException | None = None
        self._files = files
        self._blocks: dict[SourceFile, list[Block]] = {}
        self._closing = False
        # A byte wakes the dispatcher, because it waits for connections only.
        self._wake_up, self._waker = _CONTEXT.Pipe(duplex=False)
        self._processes: list[_Process] = []
        # So that the collector does not copy what the processes share.
        gc.freeze()
        for _ in range(workers):
            self._processes.append(self._start(work))
        self._dispatcher = threading.Thread(target=self._dispatch, name="dispatcher", daemon=True)

    def __enter__(self) -> Pool:
        global _current
        _current = self
        for file in self._files:
            task = DiscoverFile(file)
            self._unclaimed[task] = self._add(task)
        self._dispatcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _current
        _current = None
        self._closing = True
        self._waker.send_bytes(b"closing")
        self._dispatcher.join()
        for each in self._processes:
            # What a worker has not finished, a later run does again.
            each.process.kill()
            each.process.join()

    def submit(self, task: Task) -> Future[Done]:
        """Returns the result of a task, which may be there already."""
        with self._lock:
            future = self._unclaimed.pop(task, None)
            if future is not None:
                return future
            future = self._add(task)
        self._waker.send_bytes(b"task")
        return future

    def _start(self, work: Work) -> _Process:
        ours, theirs = _CONTEXT.Pipe()
        # A worker must not hold the other ends: it could not see that they are closed.
        inherited = [ours, *(each.connection for each in self._processes)]
        arguments = (theirs, inherited if _CONTEXT.get_start_method() == "fork" else [], work)
        process = _CONTEXT.Process(target=_serve, args=(*arguments, os.getpid()), daemon=True)
        # A signal must not find a worker that still has this process's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Process(process, ours)

    def _add(self, task: Task) -> Future[Done]:
        future: Future[Done] = Future()
        if self._failure is None:
            self._waiting.append(_Job(task, future))
        else:
            future.set_exception(self._failure)
        return future

    def _dispatch(self) -> None:
        """Hands out tasks and takes results until the pool is closed."""
        by_connection = {each.connection: each for each in self._processes}
        try:
            while not self._closing:
                self._hand_out()
                for ready in wait([self._wake_up, *by_connection]):
                    assert isinstance(ready, Connection)
                    if ready is self._wake_up:
                        ready.recv_bytes()
                    elif not self._receive(by_connection[ready]):
                        del by_connection[ready]
        except BaseException as error:
            self._fail(error)

    def _hand_out(self) -> None:
        with self._lock:
            for each in self._processes:
                if each.job is None and self._waiting:
                    each.job = self._waiting.popleft()
                    with suppress(OSError):  # it has died, which `_receive` finds out
                        each.connection.send(each.job.task)

    def _receive(self, process: _Process) -> bool:
        """Takes a result of a process; returns False if the process has ended."""
        try:
            result = process.connection.recv()
        except (EOFError, OSError):
            self._fail(_death(process))
            return False
        job = process.job
        assert job is not None
        if isinstance(result, BaseException):
            self._fail(result)
        else:
            self._take(job, result)
        process.job = None
        return True

    def _take(self, job: _Job, result: Done) -> None:
        if self._failure is not None:
            return
        job.future.set_result(result)
        if isinstance(job.task, DiscoverFile):
            file, blocks = result[0]
            self._blocks[file] = blocks
            # All footers first: a wrong flag then leaves no block behind.
            if len(self._blocks) == len(self._files):
                self._add_blocks()

    def _add_blocks(self) -> None:
        with self._lock:
            for file in self._files:
                for block in self._blocks[file]:
                    task = FinishBlock(file, block)
                    self._unclaimed[task] = self._add(task)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            jobs = [each.job for each in self._processes if each.job is not None]
            jobs += self._waiting
            self._waiting.clear()
        for job in jobs:
            job.future.set_exception(error)


def _death(worker: _Process) -> FineshardsError:
    """What to say of a worker process that has ended."""
    worker.process.join()
    code = worker.process.exitcode
    # The first child that is waited for; later ones are killed by us.
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    memory *= 1 if sys.platform == "darwin" else 1024
    doing = "waiting for work" if worker.job is None else str(worker.job.task)
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    advice = (
        "Most likely the machine ran out of memory: use fewer --workers"
        if code == -signal.SIGKILL
        else "See the lines above, if there are any"
    )
    return FineshardsError(
        f"a worker process was {how} while {doing}; it held {memory / 1e9:.2f} GB of memory at "
        f"most. {advice}. Finished work is safe; run the same command again to resume."
    )


def _serve(connection: Connection, inherited: list[Connection], work: Work, launcher: int) -> None:
    """What a worker process does: tasks, until the launching process ends."""
    # Ctrl-C goes to all processes of a terminal; the launching one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    end_with(launcher)
    gc.enable()
    for other in inherited:
        other.close()
    worker = Worker(work)
    while True:
        try:
            task: Task = connection.recv()
        except (EOFError, OSError):
            return  # the launching process has ended
        began = time.monotonic()
        result: Done | BaseException
        try:
            result = task.run(worker), time.monotonic() - began
        except FineshardsError as error:
            result = error
        except BaseException:
            result = RuntimeError(f"a worker failed while {task}:\n{traceback.format_exc()}")
        with suppress(OSError):
            connection.send(result)
