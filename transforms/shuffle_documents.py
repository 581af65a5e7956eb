"""Shuffle: from sorted token blocks to buckets, token blocks in the order of the documents' keys.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

import logging
from collections.abc import Iterable, Iterator

import apache_beam as beam

from fineshards.shards.counts import BlockSummary, FileReport
from fineshards.shards.shuffle_order import (
    MOST_BUCKET_BYTES,
    Bucket,
    Fragment,
    PlainFragment,
    ShufflePlan,
    buckets_of,
)
from fineshards.transforms.plan import check_counts
from fineshards.transforms.run_tasks import Gather, JobStep, RunTasks, StepMetrics
from fineshards.worker.tasks import Task, write_bucket
from fineshards.worker.work import Work

METRICS = StepMetrics("shuffle")
_log = logging.getLogger("fineshards.worker")


class ShuffleDocuments(JobStep):
    """From the summaries of sorted token blocks, one list per file, to those of buckets.

    Only references are shuffled.
    """

    def __init__(self, work: Work, reports: beam.PCollection) -> None:
        super().__init__(work)
        self._reports = reports

    def expand(self, by_file: beam.PCollection) -> beam.PCollection:
        plan = self._reports | "AllReports" >> Gather() | "Buckets" >> beam.Map(_plan, self._work)
        return (
            by_file
            | "Fragments" >> beam.FlatMap(_fragments, beam.pvalue.AsSingleton(plan))
            | "GroupBuckets" >> beam.GroupByKey()
            | "ListedFragments" >> beam.MapTuple(_listed)
            | "Sort" >> beam.ParDo(_Sort(METRICS, self._work))
        )


def _plan(reports: list[FileReport], work: Work) -> ShufflePlan:
    check_counts(reports, work)
    rule, size = work.settings.split, work.settings.token_dtype.itemsize
    most = MOST_BUCKET_BYTES if work.inline else None
    plan = ShufflePlan.of(reports, rule, size, work.memory_bytes, most)
    _log.info("shuffle: %d buckets", plan.buckets)
    return plan


def _fragments(
    summaries: list[BlockSummary], plan: ShufflePlan
) -> Iterator[tuple[int, PlainFragment]]:
    # What crosses the shuffle is plain: Beam knows how to code tuples of numbers and texts, and
    # pickles all else.
    for summary in summaries:
        for number, fragment in buckets_of(summary, plan):
            yield number, fragment.plain()


def _listed(key: int, fragments: Iterable[PlainFragment]) -> tuple[int, list[Fragment]]:
    # Some runners allow only one read of a group, and only where it arrived.
    return key, [Fragment.of(fragment) for fragment in fragments]


class _Sort(RunTasks):
    def task(self, group: tuple[int, list[Fragment]]) -> Task:
        streams = len(self._work.settings.split.streams)
        return write_bucket(Bucket.numbered(group[0], streams), tuple(group[1]))

    def counts(self, group: tuple[int, list[Fragment]], summary: BlockSummary) -> dict[str, int]:
        return {
            "fragments_in": len(group[1]),
            "buckets_out": 1,
            "tokens_out": summary.counts.tokens,
        }
