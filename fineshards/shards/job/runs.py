"""Where a job runs: on this machine, by a lock, or on a service, by a note for people.

Processes on this machine hold a lock on a file in the job's checkpoints. The system lets go of it
when they end, however they end. Only where the output is on a disk.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from fineshards.errors import OutputError
from fineshards.shards.ledger import Kind, Ledger
from fineshards.shards.record import Record
from fineshards.storage.base import Storage

_NAME = "running"


@contextmanager
def held_lock(storage: Storage, folder: str) -> Iterator[None]:
    """Holds the lock; several processes may. folder: of the job's checkpoints."""
    if not storage.on_disk:
        yield
        return
    with _opened(storage.path(f"{folder}/{_NAME}")) as file:
        os.utime(file.fileno())
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def claimed_shards(storage: Storage, folder: str) -> Iterator[bool]:
    """Lets one process at a time write unfinished shards; whether this one may.

    Its children do not hold the lock, unlike the other one: a killed job resumes at once.
    """
    if not storage.on_disk:
        yield False
        return
    with _opened(storage.path(f"{folder}/writing")) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process has it, or a file system without locks
            yield False
        else:
            yield True


def _opened(path: str) -> BinaryIO:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return open(path, "ab")


def seconds_running(storage: Storage, folder: str) -> float | None:
    """How long ago the lock was taken, if `is_running`; None where that is not known."""
    with suppress(OSError):
        return max(0.0, time.time() - os.path.getmtime(storage.path(f"{folder}/{_NAME}")))
    return None


def forget(storage: Storage, folder: str) -> None:
    """Deletes the file: the job runs elsewhere now."""
    if storage.on_disk:
        storage.delete(f"{folder}/{_NAME}")


def is_running(storage: Storage, folder: str) -> bool | None:
    """Whether a process holds the lock; None where that is not known."""
    if not storage.on_disk:
        return None
    try:
        with open(storage.path(f"{folder}/{_NAME}"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


class RemoteRun(Record, frozen=True):
    """A run of a job on a service. console: the address of its page there."""

    job_id: str
    console: str

    @classmethod
    def on_dataflow(cls, job_id: str, project: str, region: str) -> RemoteRun:
        """A job on Dataflow."""
        site = "https://console.cloud.google.com/dataflow/jobs"
        return cls(job_id, f"{site}/{region}/{job_id}?project={project}")

    def save(self, storage: Storage, folder: str) -> None:
        """Notes the run, in place of an earlier one. folder: of the job's checkpoints."""
        self.forget(storage, folder)
        with suppress(OutputError):  # another launch was faster, and names a run of this job too
            Ledger(storage, folder).put(_RUNS, "dataflow", (), self)

    @staticmethod
    def forget(storage: Storage, folder: str) -> None:
        """Deletes the note, if there is one: the job runs elsewhere now."""
        Ledger(storage, folder).drop(_RUNS, "dataflow")

    @classmethod
    def load(cls, storage: Storage, folder: str) -> RemoteRun | None:
        """The last run; None if none is noted."""
        return Ledger(storage, folder).get(_RUNS, "dataflow")


_RUNS = Kind("", RemoteRun)
