"""Shuffle: from sorted token blocks to buckets, token blocks in the order of the documents' keys.

Modules in this folder do without `from __future__ import annotations`: see plan.py.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from typing import Any

import apache_beam as beam

from fineshards.shards.counts import BlockSummary, FileReport
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.shuffle_order import (
    MOST_BUCKET_BYTES,
    Bucket,
    Fragment,
    Group,
    PlainFragment,
    ShufflePlan,
    buckets_of,
    groups_of,
)
from fineshards.transforms.plan import check_counts
from fineshards.transforms.run_tasks import Gather, JobStep, RunTasks, StepMetrics
from fineshards.worker.tasks import Task, merge_runs, write_bucket
from fineshards.worker.work import Work

# A Group as it crosses a shuffle.
PlainGroup = tuple[int, int, int, int, int]

METRICS = StepMetrics("shuffle")
_log = logging.getLogger("fineshards.worker")


class ShuffleDocuments(JobStep):
    """From the summaries of sorted token blocks, one list per file, to those of buckets.

    Where a bucket's part of a run would be too small to be worth a request, runs are merged first.
    Only references are shuffled.
    """

    def __init__(self, work: Work, reports: beam.PCollection) -> None:
        super().__init__(work)
        self._reports = reports

    def expand(self, by_file: beam.PCollection) -> beam.PCollection:
        plan = beam.pvalue.AsSingleton(
            self._reports | "AllReports" >> Gather() | "Buckets" >> beam.Map(_plan, self._work)
        )
        direct = by_file | "Direct" >> beam.FlatMap(_direct, plan)
        merged = (
            by_file
            | "Groups" >> beam.FlatMap(_groups, plan)
            | "GroupRuns" >> beam.GroupByKey()
            | "ListedRuns" >> beam.MapTuple(_listed)
            | "Merge" >> beam.ParDo(_Merge(METRICS, self._work))
            | "Merged" >> beam.FlatMap(_merged, plan)
        )
        return (
            (direct, merged)
            | "Fragments" >> beam.Flatten()
            | "GroupBuckets" >> beam.GroupByKey()
            | "ListedFragments" >> beam.MapTuple(_listed)
            | "Sort" >> beam.ParDo(_Sort(METRICS, self._work))
        )


def _plan(reports: list[FileReport], work: Work) -> ShufflePlan:
    check_counts(reports, work)
    settings = work.settings
    plan = ShufflePlan.of(
        reports,
        settings.split,
        settings.block_bytes,
        settings.token_dtype.itemsize,
        work.memory_bytes,
        MOST_BUCKET_BYTES if work.inline else None,
    )
    _log.info("shuffle: %d buckets%s", plan.buckets, " of merged runs" if plan.group else "")
    return plan


# What crosses the shuffles is plain: Beam knows how to code tuples of numbers and texts, and
# pickles all else.


def _direct(
    summaries: list[BlockSummary], plan: ShufflePlan
) -> Iterator[tuple[int, PlainFragment]]:
    if not plan.group:
        for summary in summaries:
            yield from _plain_buckets("blocks", summary, plan)


def _groups(
    summaries: list[BlockSummary], plan: ShufflePlan
) -> Iterator[tuple[PlainGroup, PlainFragment]]:
    if plan.group:
        for group, fragment in groups_of(summaries, plan):
            yield astuple(group), fragment.plain()


def _merged(summary: BlockSummary, plan: ShufflePlan) -> Iterator[tuple[int, PlainFragment]]:
    return _plain_buckets("merged", summary, plan)


def _plain_buckets(
    folder: str, summary: BlockSummary, plan: ShufflePlan
) -> Iterator[tuple[int, PlainFragment]]:
    block = TokenBlock(folder, summary.file, summary.index)
    for number, fragment in buckets_of(block, summary, plan):
        yield number, fragment.plain()


def _listed(key: Any, fragments: Iterable[PlainFragment]) -> tuple[Any, list[Fragment]]:
    # Some runners allow only one read of a group, and only where it arrived.
    return key, [Fragment.of(fragment) for fragment in fragments]


class _Merge(RunTasks):
    def task(self, group: tuple[PlainGroup, list[Fragment]]) -> Task:
        return merge_runs(Group(*group[0]), tuple(group[1]))

    def counts(
        self, group: tuple[PlainGroup, list[Fragment]], summary: BlockSummary
    ) -> dict[str, int]:
        return {"runs_in": len(group[1]), "tokens_merged": summary.counts.tokens}


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
