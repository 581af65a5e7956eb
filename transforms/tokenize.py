"""Tokenize: from a block's text to a token block in `checkpoints/`, and its summary."""

import apache_beam as beam

from fineshards.encoders.loading import load_encoder
from fineshards.shards.records import Block, SourceFile
from fineshards.shards.reports import BlockSummary
from fineshards.transforms import head_start
from fineshards.transforms.blocks import finish_block
from fineshards.transforms.metrics import StepMetrics
from fineshards.transforms.parallel import ParallelDoFn
from fineshards.transforms.work import Work

METRICS = StepMetrics("tokenize")


class Tokenize(beam.PTransform):
    """From (file, block) pairs to block summaries. Nearly all of the CPU work is here."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            blocks
            | "Spread" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(_TokenizeBlock(self._work))
            | "Summary" >> beam.Map(_summary)
        )


class _TokenizeBlock(ParallelDoFn):
    def __init__(self, work: Work) -> None:
        super().__init__(METRICS, work.threads)
        self._work = work

    def setup(self) -> None:
        self._encoder = load_encoder(
            self._work.settings.tokenizer,
            self._work.checkpoints.storage,
            self._work.tokenizer_engine,
        )

    def work(self, element: tuple[SourceFile, Block]) -> tuple[BlockSummary, bool]:
        file, block = element
        begun = head_start.take(self._work.checkpoints, block)
        if begun is not None:
            return begun
        return finish_block(file, block, self._encoder, self._work)

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


def _summary(result: tuple[BlockSummary, bool]) -> BlockSummary:
    return result[0]
