"""From the counts of blocks to shards: Plan and Write; and the tables about source files."""

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
from fineshards.shards.job.records import MetadataFile, Piece, ShardRecord
from fineshards.shards.layout import ShardKey
from fineshards.shards.piece_plan import StreamPlan, plan_pieces, plan_stream
from fineshards.shards.tables.block_counts import rows_of
from fineshards.transforms.run_tasks import Gather, GroupLists, JobStep, RunTasks, count
from fineshards.worker.tasks import Task, write_shard, write_tables
from fineshards.worker.work import Work

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


def _by_file(summary: BlockSummary) -> tuple[int, BlockSummary]:
    return summary.file, summary


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


def check_counts(reports: list[FileReport], work: Work) -> None:
    """Raises InputError for source files whose counts the job does not accept."""
    check_reports(reports, work.max_bad_rows, not work.earlier)
    if work.settings.chat is not None and not work.allow_constant_mask:
        check_masks(reports, work.checkpoints.job().files)


def _plan(reports: list[FileReport], work: Work) -> StreamPlan:
    if work.settings.shuffle is None:  # otherwise these are of buckets
        check_counts(reports, work)
    plan = plan_stream(reports, work.settings.shard_tokens, work.settings.split, work.earlier)
    layout = plan.layout
    work.checkpoints.write_layout(layout)
    count("plan", tokens_in=layout.tokens, shards_out=layout.windows)
    shards = f"{layout.windows_of('test')} test and {layout.windows_of('train')} train shards"
    _log.info("plan: %s tokens, %s", f"{layout.tokens:,}", shards)
    return plan


def _keyed_pieces(
    summaries: list[BlockSummary], plan: StreamPlan, folder: str
) -> Iterator[tuple[tuple[str, int], Piece]]:
    for key, piece in plan_pieces(summaries, plan, folder):
        count("plan", pieces_out=1)
        yield (key.split, key.index), piece


class WriteShards(JobStep):
    """From pieces keyed by (split, index) to shard records. Only references are shuffled."""

    def __init__(self, work: Work, plan: beam.PCollection) -> None:
        super().__init__(work)
        self._plan = plan

    def expand(self, pieces: beam.PCollection) -> beam.PCollection:
        write = beam.ParDo(
            RunTasks("write", self._work, _write, _count_shard), beam.pvalue.AsSingleton(self._plan)
        )
        return pieces | "ByShard" >> GroupLists() | "Assemble" >> write


def _write(group: tuple[tuple[str, int], list[Piece]], plan: StreamPlan) -> Task:
    return write_shard(plan.layout.shard(ShardKey(*group[0])), tuple(group[1]))


def _count_shard(group: tuple[tuple[str, int], list[Piece]], record: ShardRecord) -> dict[str, int]:
    _log.debug("write: %s, %d tokens", record.name, record.tokens)
    written = {"tokens_out": record.tokens, "bytes_out": record.bytes}
    return {"pieces_in": len(group[1]), "shards_out": 1, **written}


class WithEarlier(JobStep):
    """Adds to the records of new shards those of earlier generations."""

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        return records | "New" >> Gather() | "Earlier" >> beam.FlatMap(_with_earlier, self._work)


def _with_earlier(records: list[ShardRecord], work: Work) -> list[ShardRecord]:
    return [*work.earlier.manifest(work.checkpoints.storage).shards, *records]


class WriteTables(JobStep):
    """From block summaries by file to the files of decisions, scores, keys and statistics."""

    def expand(self, by_file: beam.PCollection) -> beam.PCollection:
        write = RunTasks("tables", self._work, lambda summaries: write_tables(summaries[0].file))
        return (
            by_file
            | "Spread" >> beam.Reshuffle()
            | "OfFile" >> beam.ParDo(write)
            | "Written" >> beam.FlatMap(_each)
        )


def _each(written: list[MetadataFile]) -> list[MetadataFile]:
    return written
