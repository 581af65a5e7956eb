"""Plan: how many tokens each block has decides which tokens go where.

Modules of this room do without `from __future__ import annotations`: Beam reads the annotations of
functions to choose coders, and takes one that is text for Any.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from shards.checkpoints import Checkpoints
from shards.errors import InputError
from shards.job import Settings
from shards.plan import StreamPlan, complete_file, plan_pieces, plan_stream, report_file
from shards.records import BlockSummary, FileReport, Piece
from transforms.gather import Gather
from transforms.metrics import StepMetrics

METRICS = StepMetrics("plan")
_log = logging.getLogger("fineshards.worker")


class Plan(beam.PTransform):
    """From block summaries to pieces keyed by (split, index), the plan, and a report a file.

    Returns a dict of collections: `pieces`, `plan` (one element) and `reports`.
    """

    def __init__(
        self, checkpoints: Checkpoints, settings: Settings, files: int, max_bad_rows: int
    ) -> None:
        super().__init__()
        self._arguments = (checkpoints, settings, files, max_bad_rows)

    def expand(self, summaries: beam.PCollection) -> Any:
        """Builds the step. Beam has no type hint for several outputs."""
        # A file's summaries are at most a few thousand small elements, so that a list of them may
        # be one element; they are used twice, and some runners let a group be read only once.
        by_file = (
            summaries
            | "ByFile" >> beam.Map(_by_file)
            | "GroupFiles" >> beam.GroupByKey()
            | "Complete" >> beam.Map(_complete)
        )
        reports = by_file | "Report" >> beam.Map(_report)
        plan = (
            reports
            | "AllReports" >> Gather()
            | "Layout" >> beam.Map(_plan_and_check, *self._arguments)
        )
        pieces = by_file | "Pieces" >> beam.FlatMap(_keyed_pieces, beam.pvalue.AsSingleton(plan))
        return {"pieces": pieces, "plan": plan, "reports": reports}


def _by_file(summary: BlockSummary) -> tuple[int, BlockSummary]:
    return summary.file, summary


def _complete(group: tuple[int, Iterable[BlockSummary]]) -> list[BlockSummary]:
    return complete_file(group[1])


def _report(summaries: list[BlockSummary]) -> FileReport:
    return report_file(summaries)


def _plan_and_check(
    reports: list[FileReport],
    checkpoints: Checkpoints,
    settings: Settings,
    files: int,
    max_bad_rows: int,
) -> StreamPlan:
    check_reports(reports, max_bad_rows)
    plan = plan_stream(reports, files, settings.shard_tokens, settings.split)
    checkpoints.write_layout(plan.layout)
    METRICS.count(tokens_in=plan.layout.tokens, shards_out=plan.layout.windows)
    _log.info(
        "plan: %s tokens, %d test and %d train shards",
        f"{plan.layout.tokens:,}",
        plan.layout.test_windows,
        plan.layout.windows - plan.layout.test_windows,
    )
    return plan


def check_reports(reports: Iterable[FileReport], max_bad_rows: int) -> None:
    """Raises InputError if there is no document, or more rejected rows than allowed in all."""
    reports = list(reports)
    rejected = sum(report.rejected for report in reports)
    if rejected > max_bad_rows:
        raise InputError(
            f"{rejected} rows cannot be encoded, {max_bad_rows} are allowed; they are listed in "
            "metadata/rejected/. Mend them, or raise --max_bad_rows."
        )
    if not any(report.documents for report in reports):
        rows = sum(report.rows for report in reports)
        raise InputError(
            f"the input has no documents: {rows} rows, none with text. Check --input and "
            "--text_column."
        )


def _keyed_pieces(
    summaries: list[BlockSummary], plan: StreamPlan
) -> Iterator[tuple[tuple[str, int], Piece]]:
    for key, piece in plan_pieces(summaries, plan):
        METRICS.count(pieces_out=1)
        yield (key.split, key.index), piece
