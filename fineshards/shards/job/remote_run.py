"""Where a job runs, for people who look for its log: a note that goes with its checkpoints."""

from __future__ import annotations

from contextlib import suppress

from fineshards.errors import OutputError
from fineshards.shards.ledger import Kind, Ledger
from fineshards.shards.record import Record
from fineshards.storage.base import Storage

_KEY = "dataflow"


class RemoteRun(Record, frozen=True):
    """A run of a job on a service. console: the address of its page there.

    Example:
        >>> RemoteRun.on_dataflow("2026-11-25_00_00_00-1", "my-project", "us-central1").console
        'https://console.cloud.google.com/dataflow/jobs/us-central1/2026-11-25_00_00_00-1?project=my-project'
    """

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
            Ledger(storage, folder).put(_RUNS, _KEY, (), self)

    @staticmethod
    def forget(storage: Storage, folder: str) -> None:
        """Deletes the note, if there is one: the job runs elsewhere now."""
        Ledger(storage, folder).drop(_RUNS, _KEY)

    @classmethod
    def load(cls, storage: Storage, folder: str) -> RemoteRun | None:
        """The last run; None if none is noted."""
        return Ledger(storage, folder).get(_RUNS, _KEY)


_RUNS = Kind("", RemoteRun)
