"""Shuffle: from sorted token blocks to buckets, token blocks in the order of the keys."""

import logging
from collections.abc import Iterator

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
from fineshards.transforms.run_tasks import Gather, GroupLists, JobStep, RunTasks
from fineshards.transforms.shards import check_counts
from fineshards.worker.tasks import Task, write_bucket
from fineshards.worker.work import Work

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
        streams = len(self._work.settings.split.streams)
        sort = RunTasks("shuffle", self._work, lambda group: _sort(group, streams), _count_sorted)
        return (
            by_file
            | "Fragments" >> beam.FlatMap(_fragments, beam.pvalue.AsSingleton(plan))
            | "ByBucket" >> GroupLists()
            | "Sort" >> beam.ParDo(sort)
        )


def _plan(reports: list[FileReport], work: Work) -> ShufflePlan:
    check_counts(reports, work)
    rule, size = work.settings.split, work.settings.token_dtype.itemsize
    most = MOST_BUCKET_BYTES if work.inline else None
    plan = ShufflePlan.of(reports, rule, size, work.memory_bytes, most)
    _log.info("shuffle: %d buckets", sum(1 << bits for bits in plan.bits))
    return plan


def _fragments(
    summaries: list[BlockSummary], plan: ShufflePlan
) -> Iterator[tuple[int, PlainFragment]]:
    # What crosses the shuffle is plain: Beam knows how to code tuples of numbers and texts, and
    # pickles all else.
    for summary in summaries:
        for number, fragment in buckets_of(summary, plan):
            yield number, fragment.plain()


def _sort(group: tuple[int, list[PlainFragment]], streams: int) -> Task:
    return write_bucket(Bucket.numbered(group[0], streams), tuple(map(Fragment.of, group[1])))


def _count_sorted(group: tuple[int, list[PlainFragment]], summary: BlockSummary) -> dict[str, int]:
    return {"fragments_in": len(group[1]), "tokens_out": summary.counts.tokens}
