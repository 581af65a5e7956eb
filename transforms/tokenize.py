"""Tokenize: a block's text becomes a token block in `checkpoints/`, and a summary of it."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from encoders.encoder import Encoder
from encoders.loading import load_encoder
from shards.checkpoints import BlockWriter, Checkpoints
from shards.errors import InputError
from shards.job import REJECTED_FOLDER, Columns, Settings
from shards.plan import sum_labels
from shards.records import Block, BlockSummary, LabelCount, SourceFile
from shards.storage import Storage
from sources.reading import read_block
from sources.rows import BadRow, Rows
from transforms.metrics import StepMetrics

METRICS = StepMetrics("tokenize")


class Tokenize(beam.PTransform):
    """From (file, block) pairs to block summaries. All of the CPU work; every block on its own."""

    def __init__(self, checkpoints: Checkpoints, settings: Settings, max_bad_rows: int) -> None:
        super().__init__()
        self._do = _TokenizeBlock(checkpoints, settings, max_bad_rows)

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return blocks | "Spread" >> beam.Reshuffle() | "Encode" >> beam.ParDo(self._do)


class _TokenizeBlock(beam.DoFn):
    def __init__(self, checkpoints: Checkpoints, settings: Settings, max_bad_rows: int) -> None:
        self._checkpoints = checkpoints
        self._settings = settings
        self._max_bad_rows = max_bad_rows

    def setup(self) -> None:
        self._encoder = load_encoder(self._settings.tokenizer, self._checkpoints.storage)

    def process(self, element: tuple[SourceFile, Block]) -> Iterator[BlockSummary]:
        file, block = element
        summary = self._checkpoints.read_summary(block)
        METRICS.count(blocks_in=1, blocks_reused=int(summary is not None))
        if summary is None:
            with METRICS.timed():
                summary = tokenize_block(
                    file,
                    block,
                    self._settings.columns,
                    self._encoder,
                    self._checkpoints,
                    self._max_bad_rows,
                )
            METRICS.count(
                rows_in=summary.rows,
                bytes_in=summary.text_bytes,
                documents_out=summary.documents,
                tokens_out=summary.tokens,
            )
        yield summary


def tokenize_block(
    file: SourceFile,
    block: Block,
    columns: Columns,
    encoder: Encoder,
    checkpoints: Checkpoints,
    max_bad_rows: int,
) -> BlockSummary:
    """Encodes a block into its token block and returns the summary.

    Rows with null text are counted and skipped. Rows that cannot be encoded go to
    `metadata/rejected/`; more than `max_bad_rows` of them raise InputError naming the last.
    """
    labels: list[LabelCount] = []
    bad: list[BadRow] = []
    rows = nulls = text_bytes = 0
    with checkpoints.create_block(block) as writer:
        for batch in read_block(file, columns, block):
            bad += batch.bad
            if len(bad) > max_bad_rows:
                raise _bad_row_error(file, bad[max_bad_rows], max_bad_rows)
            rows += len(batch.numbers) + len(batch.bad)
            nulls += batch.texts.null_count
            documents = batch.with_text()
            text_bytes += pc.sum(pc.binary_length(documents.texts)).as_py() or 0
            labels += _encode_rows(documents, encoder, writer)
        if bad:
            _write_rejected(checkpoints.storage, file, block, bad)
        summary = BlockSummary(
            file=block.file,
            index=block.index,
            blocks=block.blocks,
            rows=rows,
            documents=writer.documents,
            nulls=nulls,
            rejected=len(bad),
            tokens=writer.tokens,
            text_bytes=text_bytes,
            labels=sum_labels(labels),
        )
        writer.finish(summary)
    return summary


def _encode_rows(rows: Rows, encoder: Encoder, writer: BlockWriter) -> list[LabelCount]:
    """Appends the documents of a batch; returns what their labels count."""
    batch = encoder.encode(rows.texts)
    writer.append(batch.tokens, batch.offsets, rows.numbers, rows.ids)
    lengths = np.diff(batch.offsets)
    return [
        count for name, values in rows.labels.items() for count in _count(name, values, lengths)
    ]


def _count(column: str, values: pa.Array, lengths: npt.NDArray[np.int64]) -> Iterator[LabelCount]:
    table = pa.table({"value": values, "tokens": lengths})
    sums = table.group_by("value").aggregate([("tokens", "count"), ("tokens", "sum")])
    for row in sums.to_pylist():
        if row["value"] is not None:
            yield LabelCount(column, row["value"], row["tokens_count"], row["tokens_sum"])


def _bad_row_error(file: SourceFile, bad: BadRow, max_bad_rows: int) -> InputError:
    allowed = f" ({max_bad_rows} such rows are allowed)" if max_bad_rows else ""
    return InputError(
        f"{file.path}, {bad.place}row {bad.row}: {bad.reason}{allowed}. Mend the row, or let such "
        f"rows be set aside with a higher --max_bad_rows."
    )


def _write_rejected(storage: Storage, file: SourceFile, block: Block, bad: list[BadRow]) -> None:
    lines = [json.dumps({"file": file.path} | asdict(row)) for row in bad]
    name = f"{REJECTED_FOLDER}/{block.file:05d}-{block.index:05d}.jsonl"
    storage.write(name, "".join(line + "\n" for line in lines).encode())
