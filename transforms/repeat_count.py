"""CountRepeats: from shard records to the number of new documents that repeat earlier ones.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

from collections.abc import Iterator

import apache_beam as beam

from fineshards.shards.job.records import ShardRecord
from fineshards.shards.tables.repeats import Repeats, Sides
from fineshards.transforms.gather import Gather
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.run_tasks import RunTasks, Step
from fineshards.worker.tasks import Task, compare_texts
from fineshards.worker.work import Work

METRICS = StepMetrics("repeats")


class CountRepeats(Step):
    """From the records of all shards, whose document tables are there, to one Repeats.

    No hash crosses the shuffle: a task holds those of the new documents in one range, and reads
    those of all earlier ones.
    """

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        return (
            records
            | "AllRecords" >> Gather()
            | "Ranges" >> beam.FlatMap(_ranges, self._work)
            | "Spread" >> beam.Reshuffle()
            | "Compare" >> beam.ParDo(_Compare(METRICS, self._work))
            | "AllRanges" >> Gather()
            | "Total" >> beam.Map(Repeats.total)
        )


def _ranges(records: list[ShardRecord], work: Work) -> Iterator[tuple[Sides, int]]:
    assert work.before is not None
    earlier = [sums.documents for sums in work.before.sums]
    sides = Sides.of(records, earlier, work.settings.split)
    for number in range(sides.ranges):
        yield sides, number


class _Compare(RunTasks):
    def task(self, element: tuple[Sides, int]) -> Task:
        return compare_texts(*element)

    def counts(self, element: tuple[Sides, int], found: Repeats) -> dict[str, int]:
        return {"shards_in": len(element[0].earlier), "documents_out": found.documents}
