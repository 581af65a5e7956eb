"""Commands as users run them, whose processes note what they do, and die where they are told to.

A command is a process that claims itself as `fineshards` does, so it forks its workers. It is
forked from this process, whose imports it shares. What its processes note is in memory that
outlives them, so a kill is counted by what was going on when it came.
"""

import mmap
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

# What commands import late.
import boto3  # noqa: F401
import google.cloud.storage  # noqa: F401

import fineshards.__main__ as program
import fineshards.exports.megatron
import fineshards.maintenance.redact
import fineshards.maintenance.repair  # noqa: F401
from fineshards.parent import end_with
from fineshards.shards import assembly
from fineshards.worker import pool, tasks
from support.crash_driver import OPERATIONS
from support.remembered_specs import remember_specs

# A command that takes longer hangs.
_LONGEST = 300
_PROCESSES = 16
# What is noted of each process. The launching one is number 0.
_PID, _TASK, _OPERATIONS, _BESIDE, _FIELDS = range(5)
_BLOCK, _SHARD = 1, 2
_POOLS, _KILLED, _WORKERS, _WRITERS, _SHARD_WRITERS = (
    _PROCESSES * _FIELDS + number for number in range(5)
)


@dataclass(frozen=True)
class Kill:
    """When a command is killed, and whom the signal goes to.

    whom: `group`, all of its processes; `launcher`; or `worker`, one of its workers. after: so many
    file operations or requests of all processes together. beside: of those during which several
    workers write shards. moment: so many seconds later, wherever that is.
    """

    whom: str = "group"
    after: int = 0
    beside: bool = False
    moment: float = 0


@dataclass(frozen=True)
class Seen:
    """What was seen of a command. code: negative for a signal. killed: whether a kill came.

    pools: that it has made. workers, writers, shard_writers: how many there were when the kill
    came: worker processes, those that wrote a block or a shard, and those that wrote a shard.
    operations, beside: as in Kill.
    """

    code: int
    killed: bool
    pools: int
    workers: int
    writers: int
    shard_writers: int
    operations: int
    beside: int


class Command:
    """A running command. delays: how likely each file operation or request waits up to 30 ms."""

    def __init__(
        self,
        folder: Path,
        words: tuple[str, ...],
        environment: Mapping[str, str],
        kill: Kill | None = None,
        delays: float = 0,
    ) -> None:
        remember_specs()
        self._cells = memoryview(mmap.mmap(-1, 8 * (_SHARD_WRITERS + 1))).cast("q")
        self._number = self._started = 0
        self._kill, self._delays = kill, delays
        self.said = folder / f"said-{time.monotonic_ns()}"
        storm = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)
                end_with(storm)
                os.chdir(folder)
                descriptor = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                os.environ.update(environment)
                self._watch()
                sys.argv = ["fineshards", *words]
                os._exit(program.main())
            finally:
                os._exit(99)
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(self._pid, self._pid)  # as the child does, whoever is first
        self._ended = os.pidfd_open(self._pid)

    def end(self, seconds: float = _LONGEST, whom: str = "") -> Seen:
        """Waits until the command has ended; kills it after so many seconds, if `whom` is given."""
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        if not poll.poll(seconds * 1000):
            self._strike(whom or "group")
            if not whom or not poll.poll(_LONGEST * 1000):
                raise AssertionError(f"the command hangs; see {self.said}")
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._ended)
        cells = self._cells
        return Seen(
            code,
            bool(cells[_KILLED]) and code != 0,
            *(cells[field] for field in (_POOLS, _WORKERS, _WRITERS, _SHARD_WRITERS)),
            self._sum(_OPERATIONS),
            self._sum(_BESIDE),
        )

    def _sum(self, field: int) -> int:
        return sum(self._cells[field : _PROCESSES * _FIELDS : _FIELDS])

    def _of(self, field: int) -> int:
        return self._number * _FIELDS + field

    def _writers(self, least: int) -> int:
        tasks = self._cells[_FIELDS + _TASK : _PROCESSES * _FIELDS : _FIELDS]
        return sum(task >= least for task in tasks)

    def _workers(self) -> list[int]:
        pids = self._cells[_FIELDS + _PID : _PROCESSES * _FIELDS : _FIELDS]
        return [pid for pid in pids if pid]

    def _strike(self, whom: str) -> None:
        """Notes what is going on, and kills."""
        cells, workers = self._cells, self._workers()
        cells[_WORKERS], cells[_KILLED] = len(workers), 1
        cells[_WRITERS], cells[_SHARD_WRITERS] = self._writers(_BLOCK), self._writers(_SHARD)
        if whom == "worker" and workers:
            own = os.getpid()
            with suppress(ProcessLookupError):
                os.kill(own if own in workers else workers[0], signal.SIGKILL)
        elif whom == "launcher":
            os.kill(self._cells[_PID] or self._pid, signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._cells[_PID] or self._pid, signal.SIGKILL)

    def _watch(self) -> None:
        """Makes the processes of this command note what they do."""
        self._cells[_PID] = os.getpid()
        begin, serve, close = pool.Pool._start, pool._serve, pool.Pool._end_processes
        made = pool.Pool.__init__

        def make(this: pool.Pool, *arguments: Any, **keywords: Any) -> None:
            self._cells[_POOLS] += 1
            made(this, *arguments, **keywords)

        def start(this: pool.Pool, work: Any) -> Any:
            self._started += 1
            return begin(this, work)

        def work(*arguments: Any) -> None:
            self._number = self._started
            self._cells[self._of(_PID)] = os.getpid()
            serve(*arguments)

        def end(this: pool.Pool) -> None:
            close(this)
            for number in range(1, _PROCESSES):
                self._cells[number * _FIELDS + _PID] = self._cells[number * _FIELDS + _TASK] = 0

        pool.Pool.__init__ = make  # type: ignore[method-assign]
        pool.Pool._start, pool.Pool._end_processes = start, end  # type: ignore[method-assign]
        pool._serve = work
        for module, name, task in (
            (tasks, "_encode", _BLOCK),
            (assembly, "write_bucket", _BLOCK),
            (assembly, "write_shard", _SHARD),
        ):
            setattr(module, name, self._noting(getattr(module, name), task))
        for name in OPERATIONS:
            setattr(os, name, self._counting(getattr(os, name)))
        HTTPConnection.putrequest = self._counting(  # type: ignore[method-assign]
            HTTPConnection.putrequest
        )

    def _noting(self, function: Callable[..., Any], task: int) -> Callable[..., Any]:
        def noting(*arguments: Any, **keywords: Any) -> Any:
            before = self._cells[self._of(_TASK)]
            self._cells[self._of(_TASK)] = task
            try:
                return function(*arguments, **keywords)
            finally:
                self._cells[self._of(_TASK)] = before

        return noting

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **keywords: Any) -> Any:
            self._cells[self._of(_OPERATIONS)] += 1
            several = self._writers(_SHARD) > 1
            self._cells[self._of(_BESIDE)] += several
            kill = self._kill
            if (
                kill is not None
                and not self._cells[_KILLED]
                and several >= kill.beside
                and self._sum(_BESIDE if kill.beside else _OPERATIONS) > kill.after
            ):
                if kill.moment:
                    self._kill = None
                    threading.Thread(target=self._strike_later, args=(kill,), daemon=True).start()
                else:
                    self._strike(kill.whom)
            elif random.random() < self._delays:
                time.sleep(random.random() * 0.03)
            return function(*arguments, **keywords)

        return counting

    def _strike_later(self, kill: Kill) -> None:
        time.sleep(kill.moment)
        self._strike(kill.whom)
