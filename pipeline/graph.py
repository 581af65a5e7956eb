"""The graph: five steps, wired together. Nothing here decides a byte."""

from __future__ import annotations

import apache_beam as beam

from fineshards.transforms.commit import Commit
from fineshards.transforms.discover import Discover
from fineshards.transforms.plan import Plan
from fineshards.transforms.tokenize import Tokenize
from fineshards.transforms.work import Work
from fineshards.transforms.write import Write


def build_pipeline(root: beam.Pipeline, work: Work) -> beam.PCollection:
    """Adds the job to a pipeline; returns the collection that holds the manifest's name.

    When it runs, the job record and the vocabulary must be in storage (`pipeline.launch`).
    """
    summaries = root | "Discover" >> Discover(work) | "Tokenize" >> Tokenize(work)
    planned = summaries | "Plan" >> Plan(work)
    records = planned["pieces"] | "Write" >> Write(work, planned["plan"])
    return records | "Commit" >> Commit(work, planned["reports"], planned["plan"])
