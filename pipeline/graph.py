"""The graph: five steps, wired. All that decides a byte is in the steps, none of it here."""

from __future__ import annotations

import apache_beam as beam

from fineshards.transforms.commit import Commit
from fineshards.transforms.discover import Discover
from fineshards.transforms.plan import Plan
from fineshards.transforms.tokenize import Tokenize
from fineshards.transforms.work import Work
from fineshards.transforms.write import Write


def build_pipeline(root: beam.Pipeline, work: Work) -> beam.PCollection:
    """Adds the job to a pipeline; returns the collection of the one manifest name.

    The job record and the vocabulary must be in storage (`pipeline.launch`) when it runs.
    """
    summaries = root | "Discover" >> Discover(work) | "Tokenize" >> Tokenize(work)
    planned = summaries | "Plan" >> Plan(work)
    records = planned["pieces"] | "Write" >> Write(work, planned["plan"])
    return records | "Commit" >> Commit(work, planned["reports"], planned["plan"])
