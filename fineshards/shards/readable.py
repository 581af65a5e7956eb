"""Whether a dataset may be read now: not while a redaction of it is unfinished.

Until it has finished, files are neither those of one generation nor those of the next, and what is
to be removed may still be in them. Every command asks here. Training does not (docs/loader.md).
"""

from __future__ import annotations

from fineshards.errors import OutputError
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.base import Storage


def readable_manifest(storage: Storage, generation: int | None = None) -> Manifest:
    """The manifest of a finished dataset that may be read now.

    generation: which one, from 1; the latest by default. Raises OutputError for one that may not,
    and as `Manifest.load_finished`.
    """
    latest = Manifest.load_finished(storage)
    while problem := unfinished_redaction(storage, Job.load(storage, latest.generation + 1)):
        now = Manifest.load_finished(storage)
        if now.generation == latest.generation:
            raise OutputError(problem)
        latest = now  # the redaction has finished meanwhile
    if generation in (None, latest.generation):
        return latest
    return Manifest.load_finished(storage, generation)


def unfinished_redaction(storage: Storage, following: Job | None) -> str:
    """The message if the job of the next generation redacts documents; otherwise ""."""
    if following is None or following.redaction is None:
        return ""
    count = len(following.redaction.documents)
    documents = "1 document" if count == 1 else f"{count:,} documents"
    return (
        f"a redaction of {documents} of {storage.root} is not finished, so it cannot be used now. "
        "Finish it with the same fineshards redact command, then run this again."
    )
