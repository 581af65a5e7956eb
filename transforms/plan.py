"""Plan: from the number of tokens in each block to which tokens go where.

Modules in this folder do without `from __future__ import annotations`: Beam reads the annotations
of functions to choose coders, and takes a textual annotation for Any.
"""

import logging
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from fineshards.shards.counts import (
    BlockSummary,
    FileReport,
    check_masks,
    check_reports,
    complete_file,
    report_file,
)
from fineshards.shards.job.records import Piece
from fineshards.shards.piece_plan import StreamPlan, plan_pieces, plan_stream
from fineshards.shards.tables.block_counts import rows_of
from fineshards.transforms.run_tasks import Gather, JobStep, StepMetrics
from fineshards.worker.work import Work

METRICS = StepMetrics("plan")
_log = logging.getLogger("fineshards.worker")


class FileReports(beam.PTransform):
    """From block summaries to lists of them, one per file, and one report per file.

    Returns a dict of collections: `by_file`, `reports`, and `blocks`, the rows of their table.
    """

    def expand(self, summaries: beam.PCollection) -> Any:
        """Builds the step. Beam has no type hint for several outputs."""
        # A file has at most a few thousand small summaries, so a list of them can be one element.
        # It is used twice, and some runners allow only one read of a group.
        by_file = (
            summaries
            | "ByFile" >> beam.Map(_by_file)
            | "GroupFiles" >> beam.GroupByKey()
            | "Complete" >> beam.MapTuple(lambda _, summaries: complete_file(summaries))
        )
        # Through lambdas, because the annotations of these functions are textual.
        reports = by_file | "Report" >> beam.Map(lambda summaries: report_file(summaries))
        blocks = by_file | "Blocks" >> beam.Map(lambda summaries: rows_of(summaries))
        return {"by_file": by_file, "reports": reports, "blocks": blocks}


class Plan(JobStep):
    """From summaries by file, and reports, to pieces keyed by (split, index), and the plan.

    Returns a dict of collections: `pieces` and `plan` (one element). folder: that of the token
    blocks; with `buckets`, each bucket is a file of one block.
    """

    def __init__(self, work: Work, reports: beam.PCollection, folder: str = "blocks") -> None:
        super().__init__(work)
        self._reports = reports
        self._folder = folder

    def expand(self, by_file: beam.PCollection) -> Any:
        """Builds the step. Beam has no type hint for several outputs."""
        plan = self._reports | "AllReports" >> Gather() | "Layout" >> beam.Map(_plan, self._work)
        pieces = by_file | "Pieces" >> beam.FlatMap(
            _keyed_pieces, beam.pvalue.AsSingleton(plan), self._folder
        )
        return {"pieces": pieces, "plan": plan}


def _by_file(summary: BlockSummary) -> tuple[int, BlockSummary]:
    return summary.file, summary


def check_counts(reports: list[FileReport], work: Work) -> None:
    """Raises InputError for source files whose counts the job does not accept."""
    check_reports(reports, work.max_bad_rows, not work.earlier)
    if work.settings.chat is not None and not work.allow_constant_mask:
        check_masks(reports, work.checkpoints.job().files)


def _plan(reports: list[FileReport], work: Work) -> StreamPlan:
    if work.settings.shuffle is None:  # otherwise these are of buckets
        check_counts(reports, work)
    plan = plan_stream(reports, work.settings.shard_tokens, work.settings.split, work.earlier)
    work.checkpoints.write_layout(plan.layout)
    METRICS.count(tokens_in=plan.layout.tokens, shards_out=plan.layout.windows)
    _log.info(
        "plan: %s tokens, %d test and %d train shards",
        f"{plan.layout.tokens:,}",
        plan.layout.test_windows,
        plan.layout.train_windows,
    )
    return plan


def _keyed_pieces(
    summaries: list[BlockSummary], plan: StreamPlan, folder: str
) -> Iterator[tuple[tuple[str, int], Piece]]:
    for key, piece in plan_pieces(summaries, plan, folder):
        METRICS.count(pieces_out=1)
        yield (key.split, key.index), piece
