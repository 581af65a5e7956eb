"""CountRepeats: from shard records to the number of new documents that repeat earlier ones.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

from collections.abc import Iterator

import apache_beam as beam

from fineshards.shards.job.records import ShardRecord
from fineshards.shards.tables.repeats import RepeatCount, Sides
from fineshards.transforms.gather import Gather
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.run_tasks import JobStep, RunTasks
from fineshards.worker.tasks import Task, compare_texts
from fineshards.worker.work import Work

METRICS = StepMetrics("repeats")


class CountRepeats(JobStep):
    """From the records of all shards, whose document tables are there, to one RepeatCount.

    No hash crosses the shuffle: a task holds those of the new documents in one range, and reads
    those of all earlier ones.
    """

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        sides = records | "AllRecords" >> Gather() | "Sides" >> beam.Map(_sides, self._work)
        return (
            sides
            | "Ranges" >> beam.FlatMap(_ranges)
            | "Spread" >> beam.Reshuffle()
            | "Compare" >> beam.ParDo(_Compare(METRICS, self._work), beam.pvalue.AsSingleton(sides))
            | "AllRanges" >> Gather()
            | "Total" >> beam.Map(RepeatCount.total)
        )


def _sides(records: list[ShardRecord], work: Work) -> Sides:
    return Sides.of(records, work.earlier.sums, work.settings.split)


def _ranges(sides: Sides) -> Iterator[int]:
    yield from range(sides.ranges)


class _Compare(RunTasks):
    def task(self, number: int, sides: Sides) -> Task:
        return compare_texts(sides, number)

    def counts(self, number: int, found: RepeatCount) -> dict[str, int]:
        return {"ranges_in": 1, "documents_out": found.documents}
