"""The worker processes of a local run. No Beam.

They are forked before Beam is imported, from a process that has loaded only what they need. So they
share the encoder's memory, and they work while Beam is imported. The launching process hands out
tasks and takes results; it does none of the work.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from fineshards.errors import FineshardsError
from fineshards.parent import end_with, how_it_ended
from fineshards.shards.job.records import Block, SourceFile, TokenBlock
from fineshards.shards.piece_plan import Place
from fineshards.worker.tasks import (
    HELD_BYTES,
    Done,
    Task,
    Worker,
    discover_files,
    first_task,
    side_by_side,
)
from fineshards.worker.work import Work

# macOS's own libraries do not survive a fork.
_CONTEXT: Any = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "fork")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# A task, if there is one, and places of blocks; None: store all blocks that you keep.
_Message = tuple[Task | None, list[Place] | None]

_current: Pool | None = None


def current_pool() -> Pool | None:
    """The pool of this process; None where each step does its tasks itself."""
    return _current


@dataclass(slots=True)
class _Process:
    """A worker process.

    task: what it is working on, if anything. held: results of blocks whose tokens it keeps.
    places: where such blocks go, which it does not know yet.
    """

    process: Any
    connection: Connection
    task: Task | None = None
    held: dict[TokenBlock, tuple[Task, Done]] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)


class Pool:
    """Does tasks in `workers` processes while its context lasts.

    It begins by itself with `files`: it reads all footers, then finishes all blocks. A caller that
    submits one of these tasks gets the result that is there or on its way. After the first failure
    no other task is begun, and every result that is asked for is that failure.
    """

    def __init__(
        self,
        work: Work,
        workers: int,
        files: Sequence[SourceFile],
        resumes: bool = False,
        alone: bool = False,
    ) -> None:
        """Raises FineshardsError if the system allows no more processes.

        resumes: whether the same command goes on where this one ends, as a build does. alone:
        whether no other run of the job writes unfinished shards.
        """
        self._work = work
        self._resumes = resumes
        # Guards what follows; notified when any of it changes.
        self._changed = threading.Condition()
        # Each task from when it is known until its result is taken; None until it is finished.
        self._results: dict[Task, Done | None] = {}
        self._waiting: deque[Task] = deque()
        self._failure: BaseException | None = None
        self._files = files
        self._blocks: dict[SourceFile, list[Block]] = {}
        # How many of the files, in order, have been read.
        self._known = 0
        # Finds where tokens go; None where all blocks come first.
        self._places = work.places() if alone and files else None
        # Places that are known before all files are.
        self._placed: list[Place] = []
        self._processes: list[_Process] = []
        # So that the collector does not copy what the processes share.
        gc.freeze()
        try:
            for _ in range(workers):
                self._processes.append(self._start(alone))
        except OSError as error:
            self._end_processes()
            raise FineshardsError(
                f"only {len(self._processes)} of {workers} worker processes could be started: "
                f"{error.strerror or error}. Use fewer --workers, or raise the limit of processes "
                "or open files."
            ) from error
        # One waits for each process.
        self._threads = [
            threading.Thread(target=self._employ, args=(process,), daemon=True)
            for process in self._processes
        ]

    def __enter__(self) -> Pool:
        global _current
        _current = self
        self._add(discover_files(*files) for files in side_by_side(self._files))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        global _current
        _current = None
        self._fail(FineshardsError("the worker processes have been ended"))
        self._end_processes()
        for thread in self._threads:
            thread.join()

    def submit(self, task: Task) -> None:
        """Has a task done, unless it is done or under way."""
        with self._changed:
            if self._failure is None and task not in self._results:
                self._add([task])
                self._changed.notify_all()

    def result(self, task: Task) -> Done:
        """Waits for the result of a submitted task. It can be taken once, by one caller."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._results[task] is not None)
            if self._failure is not None:
                raise self._failure
            done = self._results.pop(task)
        assert done is not None
        return done

    def results(self, tasks: Sequence[Task]) -> Iterator[Done]:
        """Has tasks done; the results in the order of the tasks."""
        for task in tasks:
            self.submit(task)
        return map(self.result, tasks)

    def _end_processes(self) -> None:
        for process in [*self._processes]:
            # What a worker has not finished, a later run does again.
            process.process.kill()
            process.process.join()

    def _start(self, alone: bool) -> _Process:
        ours, theirs = _CONTEXT.Pipe()
        most = HELD_BYTES if self._places else 0
        arguments = (theirs, self._work, alone, most, os.getpid())
        process = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        # A signal must not find a worker that still has this process's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Process(process, ours)

    def _add(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._results[task] = None
            self._waiting.append(task)

    def _employ(self, process: _Process) -> None:
        """Gives a process messages and takes its answers, in turn, until there is a failure."""
        try:
            while (message := self._next_message(process)) is not None:
                try:
                    process.connection.send(message)
                    answer = process.connection.recv()
                except (EOFError, OSError):
                    self._processes.remove(process)
                    raise _death(process, self._resumes) from None
                self._take(process, *answer)
        except BaseException as error:
            self._fail(error)

    def _next_message(self, process: _Process) -> _Message | None:
        """Waits for something to do for a process; None after a failure."""

        def message() -> _Message | None:
            if self._waiting or process.places:
                process.task = self._waiting.popleft() if self._waiting else None
                places, process.places = process.places, []
                return process.task, places
            # Nothing that is under way will count the blocks before these.
            is_stuck = process.held and not any(each.task for each in self._processes)
            return (None, None) if is_stuck else None

        with self._changed:
            next_message = self._changed.wait_for(lambda: self._failure or message())
        return next_message if isinstance(next_message, tuple) else None

    def _take(
        self, process: _Process, result: Done | BaseException | None, held: set[TokenBlock]
    ) -> None:
        """Takes a process's answer, and finds what it makes possible."""
        if isinstance(result, BaseException):
            self._fail(result)
            return
        with self._changed:
            self._results |= dict(map(process.held.pop, process.held.keys() - held))
            task, process.task = process.task, None
            if task is not None and result is not None:
                if task.name == "finish_block" and (of := task.arguments[1].place) in held:
                    process.held[of] = task, result
                else:
                    self._results[task] = result
                if self._failure is None:
                    self._follow(task, result)
            self._changed.notify_all()

    def _follow(self, task: Task, done: Done) -> None:
        """Adds the tasks, and finds the places, that a result makes known."""
        if task.name == "discover_files":
            self._blocks |= done[0]
            if self._places is None and len(self._blocks) < len(self._files):
                return  # what is finished cannot wait for the other footers
            # In order: the columns of the first file are checked before its first block is encoded.
            while self._known < len(self._files) and self._files[self._known] in self._blocks:
                file = self._files[self._known]
                self._add(first_task(file, each, self._work) for each in self._blocks[file])
                if self._places:
                    self._places.expect(self._blocks[file])
                self._known += 1
        elif task.name == "finish_block" and self._places:
            self._placed += self._places.add(done[0][0])
        # All footers first: a wrong flag then leaves no block behind.
        if self._known == len(self._files):
            for each in self._processes:
                each.places += [place for place in self._placed if place.block in each.held]
            self._placed = []

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._waiting.clear()
            self._changed.notify_all()


def _death(worker: _Process, resumes: bool) -> FineshardsError:
    """What to say of a worker process that has ended."""
    try:
        _, status, used = os.wait4(worker.process.pid, 0)
    except ChildProcessError:  # multiprocessing has noticed its end while it started another one
        code, memory = worker.process.exitcode, ""
    else:
        code = os.waitstatus_to_exitcode(status)
        held = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        memory = f"; it held {held / 1e9:.2f} GB of memory at most"
    doing = "waiting for work" if worker.task is None else str(worker.task)
    advice = "See the lines above, if there are any."
    if code == -signal.SIGKILL:
        advice = "Most likely the machine ran out of memory"
        advice += ": use fewer --workers." if resumes else "."
    if resumes:
        advice += " Finished work is safe; run the same command again to resume."
    return FineshardsError(f"a worker process {how_it_ended(code)} while {doing}{memory}. {advice}")


def _serve(connection: Connection, work: Work, alone: bool, most: int, launcher: int) -> None:
    """What a worker process does: tasks, until the launching process ends.

    It answers each message with a result, if it had a task, and the blocks that it keeps now.
    """
    # Ctrl-C goes to all processes of a terminal; the launching one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    end_with(launcher)
    gc.enable()
    worker = Worker(work, alone)
    worker.held.most = most
    with suppress(EOFError, OSError):  # the launching process has ended
        while True:
            task, places = connection.recv()
            result: Done | BaseException | None = None
            try:
                worker.held.settle(places)
                worker.held.store(most)
                if task is not None:
                    began = time.monotonic()
                    result = task.run(worker), time.monotonic() - began
            except FineshardsError as error:
                result = error
            except BaseException:
                doing = task or "storing blocks"
                result = RuntimeError(f"a worker failed while {doing}:\n{traceback.format_exc()}")
            connection.send((result, {*worker.held.blocks}))
