"""Discover and Tokenize: from the job's files to their blocks, and to token blocks."""

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import Block, SourceFile
from fineshards.transforms.run_tasks import JobStep, RunTasks
from fineshards.worker.tasks import discover_files, finish_block, read_counts, side_by_side


class Discover(JobStep):
    """From nothing to (file, block) pairs: all blocks of all files of the job. Reads metadata only.

    The files come from the job record, not from the graph: Dataflow does not accept a graph with
    50,000 file names. Every footer is read and checked before the first block is encoded, because
    the next step reshuffles, which is a barrier in batch.
    """

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        read = RunTasks("discover", self._work, lambda files: discover_files(*files), _count_listed)
        return (
            root
            | "Job" >> beam.Create([self._work.checkpoints])
            | "Files" >> beam.FlatMap(_files)
            | "Spread" >> beam.Reshuffle()
            | "Footers" >> beam.ParDo(read)
            | "Blocks" >> beam.FlatMap(_pairs)
        )


def _files(checkpoints: Checkpoints) -> Iterator[tuple[SourceFile, ...]]:
    return side_by_side(checkpoints.files_to_read())


def _pairs(listed: list[tuple[SourceFile, list[Block]]]) -> Iterator[tuple[SourceFile, Block]]:
    return ((file, block) for file, blocks in listed for block in blocks)


def _count_listed(files: tuple[SourceFile, ...], listed: list[Any]) -> dict[str, int]:
    return {"files_in": len(files), "blocks_out": sum(len(blocks) for _, blocks in listed)}


class Tokenize(JobStep):
    """From (file, block) pairs to block summaries. Nearly all of the CPU work is here."""

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        encode = RunTasks("tokenize", self._work, lambda pair: finish_block(*pair), _count_block)
        return (
            blocks
            | "Spread" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(encode)
            | "Summary" >> beam.Map(_summary)
        )


def _count_block(_: object, result: tuple[BlockSummary, bool]) -> dict[str, int]:
    summary, reused = result
    if reused:
        return {"blocks_in": 1, "blocks_reused": 1}
    return {
        "blocks_in": 1,
        "rows_in": summary.counts.rows,
        "bytes_in": summary.counts.text_bytes,
        "documents_out": summary.counts.documents,
        "tokens_out": summary.counts.tokens,
    }


def _summary(result: tuple[BlockSummary, bool]) -> BlockSummary:
    return result[0]


class ReadCounts(JobStep):
    """From (file, block) pairs to the summaries of blocks that are finished. Encodes nothing."""

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        read = RunTasks("tokenize", self._work, lambda pair: read_counts(*pair))
        return blocks | "Spread" >> beam.Reshuffle() | "Read" >> beam.ParDo(read)
