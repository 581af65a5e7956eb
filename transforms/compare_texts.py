"""CompareTexts: from shard records to the number of documents that share a text.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

from collections.abc import Iterator

import apache_beam as beam

from fineshards.shards.job.records import ShardRecord
from fineshards.shards.tables.shared_texts import Comparison, SharedTexts
from fineshards.transforms.run_tasks import Gather, JobStep, RunTasks, StepMetrics
from fineshards.worker.tasks import Task, compare_texts
from fineshards.worker.work import Work

METRICS = StepMetrics("texts")


class CompareTexts(JobStep):
    """From the records of all shards, whose document tables are there, to one SharedTexts.

    No hash crosses the shuffle: a task holds those of test and of new documents in one range, and
    reads those of all others.
    """

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        compared = records | "AllRecords" >> Gather() | "Sides" >> beam.Map(_sides, self._work)
        side = beam.pvalue.AsSingleton(compared)
        return (
            compared
            | "Ranges" >> beam.FlatMap(_ranges)
            | "Spread" >> beam.Reshuffle()
            | "Compare" >> beam.ParDo(_Compare(METRICS, self._work), side)
            | "AllRanges" >> Gather()
            | "Total" >> beam.Map(SharedTexts.total)
        )


def _sides(records: list[ShardRecord], work: Work) -> Comparison:
    return Comparison.of(records, work.earlier.sums, work.settings.split)


def _ranges(comparison: Comparison) -> Iterator[int]:
    yield from range(comparison.ranges)


class _Compare(RunTasks):
    def task(self, number: int, comparison: Comparison) -> Task:
        return compare_texts(comparison, number)

    def counts(self, number: int, found: SharedTexts) -> dict[str, int]:
        return {
            "ranges_in": 1,
            "test_documents_out": found.leaks.test_documents,
            "train_documents_out": found.leaks.train_documents,
            "repeats_out": found.repeats,
        }
