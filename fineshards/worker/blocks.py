"""What Discover does to a file and Tokenize to a block. No Beam."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fineshards.encoders.checked_encoder import encode_compared
from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.errors import OutputError
from fineshards.shards.block_writer import BlockWriter, Documents
from fineshards.shards.counts import BlockSummary, Counts
from fineshards.shards.job.records import BadRow, Block, SourceFile, TokenBlock
from fineshards.shards.npy import count_learned
from fineshards.shards.tables.documents import LEARNED
from fineshards.shards.tables.rejected_rows import Rejected
from fineshards.shards.tables.statistics import Tally, has_block, write_block
from fineshards.sources.reading import discover_blocks
from fineshards.sources.rows import Rows
from fineshards.worker.documents import DocumentBatch, documents
from fineshards.worker.work import Work
from fineshards.worker.worker import Worker

# Counts of record batches that are kept before they are added up.
_ADDENDS = 64


def discover_file(file: SourceFile, work: Work) -> list[Block]:
    """Returns the blocks of a file, as an earlier run found them or from its metadata."""
    found = work.checkpoints.read_blocks(file.index)
    if found is None:
        found = discover_blocks(file, work.settings.columns, work.settings.block_bytes)
        work.checkpoints.write_blocks(file.index, found)
    return found


def finish_block(file: SourceFile, block: Block, worker: Worker) -> tuple[BlockSummary, bool]:
    """Encodes a block into its token block, unless an earlier run did.

    The last stage of the job's recipe, if it has one, is done here, and the statistics of the
    documents are stored, if the job makes any.

    Returns the block's summary, and whether an earlier run had finished it. Rows with null text
    are counted and skipped. Rows that cannot be encoded are listed in `metadata/rejected/`; one
    more than allowed raises InputError.
    """
    work, judging = worker.work, worker.judging
    finished = work.checkpoints.blocks.read_summary(block.place)
    if (
        finished is not None
        and (judging is None or judging.has_last_stage(block))
        and (not work.settings.statistics or has_block(work.checkpoints, block))
    ):
        return finished, True
    work.checkpoints.stop_if_replaced(file.index)
    if judging is not None:
        found = judging.to_tokenize(file, block)
    else:
        found = documents(file, work.settings, block)
    return _encode(found, file, block, worker), False


def finished_part(place: TokenBlock, stream: str | None, work: Work) -> BlockSummary:
    """The summary of a token block that a share of the job has finished.

    stream: whose part is checked; None for none. Raises OutputError if it is missing or damaged: a
    machine may have lost power after it had finished the block.
    """
    checked = () if stream is None else (stream,)
    summary = work.checkpoints.blocks.read_summary(place, checked)
    if summary is None:
        path = work.checkpoints.storage.path(work.checkpoints.blocks.tokens_name(place, *checked))
        raise OutputError(
            f"{path} is not whole, or is gone since the shares have begun. Run the command without "
            "--share, which makes it again and does what is left."
        )
    return summary


def _encoded(rows: Rows, file: SourceFile, encoder: Encoder) -> tuple[Rows, TokenBatch, int]:
    """Encodes rows with text; returns the documents, their tokens, and how many were compared.

    The bad rows of the documents are those that the encoder refuses.
    """
    encoded, compared = encode_compared(encoder, rows.texts, file, rows.numbers)
    bad = [BadRow(int(rows.numbers[index]), "", reason) for index, reason in encoded.refused]
    if encoded.learned is None or not bad:
        return replace(rows, bad=[]), encoded, compared
    keep = np.diff(encoded.offsets) > 0
    kept = replace(
        encoded,
        offsets=encoded.offsets[np.concatenate([[True], keep])],
        learned=encoded.learned.filter(pa.array(keep)),
    )
    return rows.filter(keep, bad), kept, compared


def _encoded_counts(encoded: TokenBatch, compared: int, refused: int) -> Counts:
    learned = 0
    if encoded.learned is not None:
        learned = count_learned(encoded.learned.flatten().to_numpy().reshape(-1, 2))
    return Counts(
        rejected=refused, by_reference=encoded.by_reference, compared=compared, learned=learned
    )


def _encode(
    found: Iterable[DocumentBatch], file: SourceFile, block: Block, worker: Worker
) -> BlockSummary:
    """Writes a token block of documents; a sorted one, if documents are shuffled."""
    work, encoder = worker.work, worker.encoder
    checkpoints, settings = work.checkpoints, work.settings
    # Added up now and then: a sum costs time for each label, and its parts cost memory.
    counts: list[Counts] = []
    rejected = Rejected(file, work.max_bad_rows)
    tally = Tally() if settings.statistics else None
    redacted = [row for of, row in work.redacted if of == file.index]
    with (
        checkpoints.blocks.create_runs(block.place, settings.shuffle, settings.block_bytes)
        if settings.shuffle
        else checkpoints.blocks.create_block(block.place, worker.held.most)
    ) as writer:
        for each in found:
            rows, encoded, compared = _encoded(each.rows, file, encoder)
            rejected.add([*each.read.bad, *rows.bad])
            sources = rows.sources(file.index, settings.split)
            if encoded.learned is not None:
                sources = sources.append_column(LEARNED, encoded.learned)
            tokens, lengths = encoded.tokens, np.diff(encoded.offsets)
            if redacted:
                gone = np.isin(rows.numbers, redacted)
                eot = tokens.dtype.type(settings.tokenizer.eot)
                tokens = np.where(np.repeat(gone, lengths), eot, tokens)
            writer.append(Documents(tokens, encoded.offsets, sources))
            counts += each.counts()
            counts.append(rows.document_counts(lengths))
            if tally is not None:
                tally.add_dataset(rows.texts, lengths, rows.labels)
            counts.append(_encoded_counts(encoded, compared, len(rows.bad)))
            if len(counts) > _ADDENDS:
                counts = [Counts.total(counts)]
        rejected.save(checkpoints.storage, block)
        if tally is not None:
            # Before the token block is finished: then it has them.
            write_block(checkpoints, block, tally.table())
        summary = writer.finish(block.index, block.blocks, Counts.total(counts))
    if isinstance(writer, BlockWriter) and writer.is_held:
        worker.held.add(writer)
    return summary
