"""What Discover does to a file and Tokenize to a block. No Beam."""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from encoders.encoder import Encoder, TokenBatch
from shards.checkpoints import Checkpoints
from shards.errors import FineshardsError, InputError
from shards.job import REJECTED_FOLDER, Columns, Settings
from shards.plan import sum_labels
from shards.records import Block, BlockSummary, LabelCount, SourceFile
from shards.sample import sampled
from shards.storage import Storage
from sources.reading import discover_blocks, read_block
from sources.rows import BadRow, Rows

# One document in a thousand is encoded by the reference as well: at a tenth of the speed that
# costs a hundredth of the time, and a fault that hits one document in 10,000 is found, with a
# probability of 99.99 %, within the first hundred million.
COMPARED_SHARE = 1 / 1000


class GivenUpError(Exception):
    """A block was not finished, because nobody wants it any more."""


def discover_file(file: SourceFile, checkpoints: Checkpoints, settings: Settings) -> list[Block]:
    """The blocks of a file, as an earlier run found them or from its metadata."""
    blocks = checkpoints.read_blocks(file.index)
    if blocks is None:
        blocks = discover_blocks(file, settings.columns, settings.block_bytes)
        checkpoints.write_blocks(file.index, blocks)
    return blocks


def finish_block(
    file: SourceFile,
    block: Block,
    columns: Columns,
    encoder: Encoder,
    checkpoints: Checkpoints,
    max_bad_rows: int,
    given_up: threading.Event | None = None,
) -> tuple[BlockSummary, bool]:
    """Encodes a block into its token block, unless an earlier run did.

    Returns the block's summary, and whether it was finished before. Once `given_up` is set, raises
    GivenUpError after the batch at work, and leaves no block.
    Rows with null text are counted and skipped. Rows that cannot be encoded go to
    `metadata/rejected/`; more than `max_bad_rows` of them raise InputError naming the last.
    """
    finished = checkpoints.read_summary(block)
    if finished is not None:
        return finished, True
    labels: list[LabelCount] = []
    by_reference = compared = 0
    bad: list[BadRow] = []
    rows = nulls = text_bytes = 0
    with checkpoints.create_block(block) as writer:
        for batch in read_block(file, columns, block):
            if given_up is not None and given_up.is_set():
                raise GivenUpError
            bad += batch.bad
            if len(bad) > max_bad_rows:
                raise _bad_row_error(file, bad[max_bad_rows], max_bad_rows)
            rows += len(batch.numbers) + len(batch.bad)
            nulls += batch.texts.null_count
            documents = batch.with_text()
            text_bytes += pc.sum(pc.binary_length(documents.texts)).as_py() or 0
            encoded = encoder.encode(documents.texts)
            compared += _compare_sample(file, documents, encoded, encoder)
            by_reference += encoded.by_reference
            writer.append(encoded.tokens, encoded.offsets, documents.numbers, documents.ids)
            labels += _count_labels(documents, np.diff(encoded.offsets))
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
            by_reference=by_reference,
            compared=compared,
            labels=sum_labels(labels),
        )
        writer.finish(summary)
    return summary, False


def _compare_sample(file: SourceFile, rows: Rows, encoded: TokenBatch, encoder: Encoder) -> int:
    """Encodes a sample of a batch with the reference as well; returns how many documents.

    Raises FineshardsError naming the first document whose tokens differ.
    """
    if encoder.reference is encoder:
        return 0
    places = np.flatnonzero(sampled(rows.numbers, COMPARED_SHARE, salt=file.index))
    if not places.size:
        return 0
    expected = encoder.reference.encode(rows.texts.take(pa.array(places)))
    for number, place in enumerate(places.tolist()):
        if not np.array_equal(encoded.document(place), expected.document(number)):
            raise FineshardsError(
                f"{file.path}, row {rows.numbers[place]}: {encoder.name} makes "
                f"{len(encoded.document(place)) - 1} tokens of this document that differ from the "
                f"{len(expected.document(number)) - 1} of {encoder.reference.name}, which are the "
                "right ones. Please report the document; --tokenizer_engine "
                f"{encoder.reference.name.split()[0]} with --overwrite encodes all of them so."
            )
    return len(places)


def _count_labels(rows: Rows, lengths: npt.NDArray[np.int64]) -> list[LabelCount]:
    return [
        count for name, values in rows.labels.items() for count in _count(name, values, lengths)
    ]


def _count(column: str, values: pa.Array, lengths: npt.NDArray[np.int64]) -> Iterator[LabelCount]:
    # Arrow's group_by does the same, but takes two milliseconds to begin.
    known = values.is_valid().to_numpy(zero_copy_only=False)
    coded = values.filter(pa.array(known)).dictionary_encode()
    number = coded.indices.to_numpy()
    documents = np.bincount(number, minlength=len(coded.dictionary))
    # Sums in float64 are exact here: a batch has far fewer than 2**53 tokens.
    tokens = np.bincount(number, weights=lengths[known], minlength=len(coded.dictionary))
    for index, value in enumerate(coded.dictionary.to_pylist()):
        yield LabelCount(column, value, int(documents[index]), int(tokens[index]))


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
