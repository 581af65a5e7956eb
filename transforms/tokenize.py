"""Tokenize: from a block's text to a token block in `checkpoints/`, and its summary."""

import apache_beam as beam

from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import Block, SourceFile
from fineshards.transforms.run_tasks import JobStep, RunTasks, StepMetrics
from fineshards.worker.tasks import Task, finish_block, read_counts

METRICS = StepMetrics("tokenize")


class Tokenize(JobStep):
    """From (file, block) pairs to block summaries. Nearly all of the CPU work is here."""

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        return (
            blocks
            | "Spread" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(_Encode(METRICS, self._work))
            | "Summary" >> beam.Map(_summary)
        )


class _Encode(RunTasks):
    def task(self, element: tuple[SourceFile, Block]) -> Task:
        return finish_block(*element)

    def counts(
        self, element: tuple[SourceFile, Block], result: tuple[BlockSummary, bool]
    ) -> dict[str, int]:
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


class ReadCounts(JobStep):
    """From (file, block) pairs to the summaries of blocks that are finished. Encodes nothing."""

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        return (
            blocks | "Spread" >> beam.Reshuffle() | "Read" >> beam.ParDo(_Read(METRICS, self._work))
        )


class _Read(RunTasks):
    def task(self, element: tuple[SourceFile, Block]) -> Task:
        return read_counts(*element)

    def counts(self, element: tuple[SourceFile, Block], summary: BlockSummary) -> dict[str, int]:
        return {"blocks_read": 1}


def _summary(result: tuple[BlockSummary, bool]) -> BlockSummary:
    return result[0]
