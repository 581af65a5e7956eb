"""Measures a command from outside: wall time, CPU time, and peak memory of all its processes.

The command gets its own session, which identifies its processes whichever of them started them.
Some libraries leave helper processes that outlive the command and hold the CPU time of all workers.
They become our children, so that their time is counted. Linux only: /proc, wait4 and prctl.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from resource import struct_rusage

from fineshards.errors import FineshardsError

# Memory is sampled at this interval in seconds, or less often if sampling would take more than this
# share of a core. A share of 0.05 also slowed down processes that map memory all the time: the job
# took 4 to 7 % longer, the bound 1 %.
SAMPLING_SECONDS = 0.05
SAMPLING_SHARE = 0.01
# How long helpers may outlive the command before they are killed.
GRACE_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36
_SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """The cost of a command.

    wall: seconds until the command ended. cpu: user and system seconds of all its processes.
    peak_process: bytes of the largest resident set of one process. peak_tree: bytes of the largest
    sum over all processes at one time, shared pages counted once (PSS). It is sampled, so a short
    peak may be missed.
    """

    wall: float
    cpu: float
    peak_process: int
    peak_tree: int


def measure(
    command: Sequence[str], log: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> Measurement:
    """Runs a command to its end; its output goes to `log`.

    env: variables added to the environment. Raises FineshardsError if the command cannot be started
    or fails. None of its processes outlives the call.
    """
    with log.open("wb") as printed, _adopting_orphans():
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise FineshardsError(f"cannot run {command[0]}: {error.strerror}.") from error
        sampler = _Sampler(process.pid)
        grace = 0.0
        try:
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
            grace = GRACE_SECONDS
        finally:
            # On an interrupt as well, but without grace.
            peak_tree = sampler.stop()
            left_behind = _end_session(process.pid, grace)
    # So that Popen does not wait for a process that has ended.
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise FineshardsError(
            f"`{' '.join(command)}` ended with exit code {process.returncode}. "
            f"The end of its output:\n{_tail(log)}"
        )
    usages = [used, *left_behind]
    return Measurement(
        wall=wall,
        cpu=sum(usage.ru_utime + usage.ru_stime for usage in usages),
        peak_process=max(usage.ru_maxrss for usage in usages) * 1024,
        peak_tree=peak_tree,
    )


class _Sampler:
    """Samples the memory of a session's processes in a thread, until stopped."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Stops sampling; returns the peak in bytes."""
        self._stopped.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            began = time.thread_time()
            now = sum(map(_proportional_bytes, _session_processes(self._session)))
            self._peak = max(self._peak, now)
            pause = max(SAMPLING_SECONDS, (time.thread_time() - began) / SAMPLING_SHARE)


def _session_processes(session: int) -> list[int]:
    """The process ids of a session, including zombies."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                stat = Path(entry.path, "stat").read_bytes()
                # After the name, which may contain anything: state, parent, group, session.
                if int(stat.rpartition(b")")[2].split()[3]) == session:
                    found.append(int(entry.name))
    return found


def _proportional_bytes(pid: int) -> int:
    """The memory of a process with its share of shared pages (PSS); 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """In the body, descendants that lose their parent become our children."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end_session(session: int, grace: float) -> list[struct_rusage]:
    """Waits for the rest of a session and kills it after `grace` seconds; returns its usage."""
    usages = []
    patience = time.monotonic() + grace
    while processes := _session_processes(session):
        for pid in processes:
            if time.monotonic() > patience:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # A process whose parent still lives is not our child.
            with suppress(ChildProcessError):
                reaped, _, usage = os.wait4(pid, os.WNOHANG)
                if reaped:
                    usages.append(usage)
        time.sleep(0.01)
    return usages


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines[-_SHOWN_LINES:])
