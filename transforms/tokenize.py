"""Tokenize: a block's text becomes a token block in `checkpoints/`, and a summary of it."""

import apache_beam as beam

from encoders.loading import load_encoder
from shards.checkpoints import Checkpoints
from shards.job import Settings
from shards.records import Block, BlockSummary, SourceFile
from transforms import head_start
from transforms.blocks import finish_block
from transforms.metrics import StepMetrics
from transforms.parallel import ParallelDoFn

METRICS = StepMetrics("tokenize")


class Tokenize(beam.PTransform):
    """From (file, block) pairs to block summaries. All of the CPU work; every block on its own."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        settings: Settings,
        engine: str,
        max_bad_rows: int,
        threads: int,
    ) -> None:
        super().__init__()
        self._do = _TokenizeBlock(checkpoints, settings, engine, max_bad_rows, threads)

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            blocks
            | "Spread" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(self._do)
            | "Summary" >> beam.Map(_summary)
        )


class _TokenizeBlock(ParallelDoFn):
    def __init__(
        self,
        checkpoints: Checkpoints,
        settings: Settings,
        engine: str,
        max_bad_rows: int,
        threads: int,
    ) -> None:
        super().__init__(METRICS, threads)
        self._checkpoints = checkpoints
        self._settings = settings
        self._engine = engine
        self._max_bad_rows = max_bad_rows

    def setup(self) -> None:
        self._encoder = load_encoder(
            self._settings.tokenizer, self._checkpoints.storage, self._engine
        )

    def work(self, element: tuple[SourceFile, Block]) -> tuple[BlockSummary, bool]:
        file, block = element
        begun = head_start.take(self._checkpoints, block)
        if begun is not None:
            return begun
        return finish_block(
            file,
            block,
            self._settings.columns,
            self._encoder,
            self._checkpoints,
            self._max_bad_rows,
        )

    def counts(
        self, element: tuple[SourceFile, Block], result: tuple[BlockSummary, bool]
    ) -> dict[str, int]:
        summary, reused = result
        if reused:
            return {"blocks_in": 1, "blocks_reused": 1}
        return {
            "blocks_in": 1,
            "rows_in": summary.rows,
            "bytes_in": summary.text_bytes,
            "documents_out": summary.documents,
            "tokens_out": summary.tokens,
        }


def _summary(result: tuple[BlockSummary, bool]) -> BlockSummary:
    return result[0]
