"""The graph: the steps, wired together. Nothing here decides a byte."""

from __future__ import annotations

import apache_beam as beam

from fineshards.transforms.commit import Commit
from fineshards.transforms.decision_tables import WriteDecisions
from fineshards.transforms.discover import Discover
from fineshards.transforms.leak_check import CountLeaks
from fineshards.transforms.mark_later import MarkLater
from fineshards.transforms.plan import FileReports, Plan
from fineshards.transforms.repeat_count import CountRepeats
from fineshards.transforms.shuffle_documents import ShuffleDocuments
from fineshards.transforms.statistics_tables import WriteStatistics
from fineshards.transforms.tokenize import Tokenize
from fineshards.transforms.write import WithEarlier, WriteShards
from fineshards.worker.work import Work


def build_pipeline(root: beam.Pipeline, work: Work) -> beam.PCollection:
    """Adds the job to a pipeline; returns the collection that holds the manifest's name.

    When it runs, the job record and the vocabulary must be in storage (`pipeline.launch`).
    """
    recipe = work.settings.recipe
    found = root | "Discover" >> Discover(work)
    for stage, step in enumerate(recipe.keyed if recipe else ()):
        found = found | f"MarkLater{step + 1}" >> MarkLater(work, stage)
    summaries = found | "Tokenize" >> Tokenize(work)
    read = blocks = summaries | "Report" >> FileReports()
    folder = "blocks"
    if work.settings.shuffle is not None:
        buckets = read["by_file"] | "Shuffle" >> ShuffleDocuments(work, read["reports"])
        blocks, folder = buckets | "ReportBuckets" >> FileReports(), "buckets"
    planned = blocks["by_file"] | "Plan" >> Plan(work, blocks["reports"], folder)
    records = planned["pieces"] | "Write" >> WriteShards(work, planned["plan"])
    if work.earlier:
        records = records | "AllShards" >> WithEarlier(work)
    repeats = records | "CountRepeats" >> CountRepeats(work) if work.earlier else None
    leaks = records | "CountLeaks" >> CountLeaks(work) if work.settings.split.may_leak else None
    written = [read["by_file"] | "Decisions" >> WriteDecisions(work)] if recipe else []
    if work.settings.statistics:
        written.append(read["by_file"] | "Statistics" >> WriteStatistics(work))
    files = written | "Written" >> beam.Flatten() if written else None
    return records | "Commit" >> Commit(
        work, read["reports"], planned["plan"], leaks, files, repeats
    )
