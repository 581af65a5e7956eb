"""The graph: five steps, wired. All that decides a byte is in the steps, none of it here."""

from __future__ import annotations

import apache_beam as beam

from shards.checkpoints import Checkpoints
from shards.job import Settings
from transforms.commit import Commit
from transforms.discover import Discover
from transforms.plan import Plan
from transforms.tokenize import Tokenize
from transforms.write import Write


def build_pipeline(
    root: beam.Pipeline,
    checkpoints: Checkpoints,
    settings: Settings,
    files: int,
    engine: str = "auto",
    assembly: str = "auto",
    threads: int = 1,
    max_bad_rows: int = 0,
    keep_checkpoints: bool = False,
) -> beam.PCollection:
    """Adds the job to a pipeline; returns the collection of the one manifest name.

    The job record and the vocabulary must be in storage (`pipeline.launch`) when it runs.
    files: their number in the job record. engine: see encoders/loading.py. assembly: see
    shards/assembly.py. threads: at work at once in each worker of the runner.
    """
    summaries = (
        root
        | "Discover" >> Discover(checkpoints, settings, threads)
        | "Tokenize" >> Tokenize(checkpoints, settings, engine, max_bad_rows, threads)
    )
    planned = summaries | "Plan" >> Plan(checkpoints, settings, files, max_bad_rows)
    records = planned["pieces"] | "Write" >> Write(checkpoints, planned["plan"], assembly, threads)
    return records | "Commit" >> Commit(
        checkpoints, planned["reports"], planned["plan"], keep_checkpoints
    )
