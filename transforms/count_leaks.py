"""CountLeaks: from shard records to the number of documents whose text is in both splits.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

import logging
from collections.abc import Iterable, Iterator

import apache_beam as beam

from fineshards.shards.job.records import ShardRecord
from fineshards.shards.tables.leaks import (
    RANGE_DOCUMENTS,
    Comparison,
    LeakCount,
    ShardTexts,
    count_leaks,
)
from fineshards.transforms.gather import Gather
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.run_tasks import JobStep, RunTasks
from fineshards.worker.tasks import Task, read_texts
from fineshards.worker.work import Work

METRICS = StepMetrics("leaks")
_log = logging.getLogger("fineshards.worker")


class CountLeaks(JobStep):
    """From the records of all shards, whose document tables are there, to one LeakCount.

    Texts are shuffled as arrays of hashes, one per shard and range of hashes. There is none if
    no text can leak, because a split is empty. most: documents per range, about.
    """

    def __init__(self, work: Work, most: int = RANGE_DOCUMENTS) -> None:
        super().__init__(work)
        self._most = most

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        plan = records | "AllRecords" >> Gather() | "Ranges" >> beam.Map(Comparison.of, self._most)
        return (
            records
            | "Read" >> beam.ParDo(_ReadTexts(METRICS, self._work), beam.pvalue.AsSingleton(plan))
            | "Parts" >> beam.FlatMap(_parts)
            | "GroupRanges" >> beam.GroupByKey()
            | "Compare" >> beam.MapTuple(_compare)
            | "AllRanges" >> Gather()
            | "Total" >> beam.Map(_total)
        )


class _ReadTexts(RunTasks):
    def task(self, record: ShardRecord, plan: Comparison) -> Task:
        return read_texts(record.split, record.name, plan)

    def counts(self, record: ShardRecord, parts: list[tuple[int, ShardTexts]]) -> dict[str, int]:
        return {"documents_in": record.documents, "parts_out": len(parts)}


def _parts(parts: list[tuple[int, ShardTexts]]) -> Iterator[tuple[int, ShardTexts]]:
    yield from parts


def _compare(_: int, parts: Iterable[ShardTexts]) -> LeakCount:
    return count_leaks(parts)


def _total(found: list[LeakCount]) -> LeakCount:
    total = LeakCount.total(found)
    METRICS.count(
        test_documents_out=total.leaks.test_documents,
        train_documents_out=total.leaks.train_documents,
    )
    _log.info("leaks: compared texts in %d ranges of their hashes: %s", len(found), total.leaks)
    return total
