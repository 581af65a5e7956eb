"""Assembles shards from pieces of token blocks, and buckets from fragments of sorted ones.

A shard is a header, then bytes of token blocks. They pass through the worker in small chunks, which
proves their checksum. Where tokens were written to their places in an unfinished shard, only what
is elsewhere is copied. A bucket is a token block of documents in the order of their keys.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import FineshardsError, InputError
from fineshards.shards import npy
from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts
from fineshards.shards.job.records import Piece, ShardRecord, TokenBlock
from fineshards.shards.layout import Shard, Shuffle, files_of
from fineshards.shards.npy import count_learned, mask_content
from fineshards.shards.shuffle_order import Bucket, Fragment, Gathered, key_order, shuffle_keys
from fineshards.shards.tables.documents import (
    DocumentTable,
    cut_documents,
    join_documents,
    learned_ranges,
)
from fineshards.storage.base import FileRange
from fineshards.storage.checksums import checksum_to_base64, crc32c, crc32c_combine

# Requests for fragments at the same time, where each takes tens of milliseconds.
_REQUESTS = 16


def write_shard(
    shard: Shard,
    pieces: Iterable[Piece],
    checkpoints: Checkpoints,
    paths: Sequence[str],
    in_place: bool = False,
) -> ShardRecord:
    """Writes a shard and its document table, finished or not; returns the shard's record.

    pieces: in any order. paths: of the source files, by index. in_place: whether this run writes
    unfinished shards. Raises FineshardsError if the pieces do not cover the shard exactly.
    """
    name, tokens = shard.name, shard.tokens
    ordered = sorted(pieces, key=lambda piece: piece.at)
    _check_cover(name, ordered, tokens)
    storage = checkpoints.storage
    header, located = npy.header(tokens, checkpoints.dtype), _located(shard, ordered, checkpoints)
    unfinished = checkpoints.blocks.unfinished_name(shard.key)
    parts = [part for part, *_ in located]
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(_write_table, shard, ordered, checkpoints, paths)
        if in_place and any(part.name == unfinished for part in parts):
            checksum = _finish(shard, header, located, checkpoints)
        else:
            checksum = storage.assemble(name, header, parts)
        table, of_files = pending.result()
    record = ShardRecord(
        name=name,
        split=shard.key.split,
        index=shard.key.index,
        tokens=tokens,
        bytes=npy.file_bytes(tokens, checkpoints.dtype),
        crc32c=checksum_to_base64(checksum),
        pieces=table.num_rows,
        documents=table["start"].to_numpy().tolist().count(0),
        first_document=table["document"][0].as_py(),
        **of_files,
    )
    checkpoints.write_shard_record(record)
    return record


def _located(
    shard: Shard, ordered: list[Piece], checkpoints: Checkpoints
) -> list[tuple[FileRange, int, int | None]]:
    """Where the tokens of pieces are, where they go, and the CRC-32C of what is a whole range.

    Raises InputError if tokens were written to another place of a shard.
    """
    blocks, size = checkpoints.blocks, checkpoints.dtype.itemsize
    shards = blocks.unfinished_name(shard.key), shard.name
    located = []
    for piece in ordered:
        at = npy.HEADER_BYTES + piece.at * size
        for part, checksum in blocks.locate(piece):
            in_place = part.name in shards and part.start == at and checksum is not None
            if not in_place and not part.name.endswith(".tokens"):
                raise InputError(
                    f"block {piece.block.index + 1} of file {piece.block.file + 1} of the input, "
                    "or one before it, gives other tokens than when tokens of blocks after it were "
                    "written: a file was changed. Start over with --overwrite."
                )
            located.append((part, at, checksum))
            at += part.stop - part.start
    return located


def _finish(
    shard: Shard,
    header: bytes,
    located: list[tuple[FileRange, int, int | None]],
    checkpoints: Checkpoints,
) -> int:
    """Copies what is not in the unfinished shard, and gives it its name; returns its CRC-32C."""
    storage, unfinished = checkpoints.storage, checkpoints.blocks.unfinished_name(shard.key)
    with storage.open_at(unfinished, 0) as target:
        target.write(header)
    checksum = crc32c(header)
    for part, at, part_checksum in located:
        if part.name != unfinished:
            with storage.open_at(unfinished, at) as target:
                part_checksum = storage.copy(part, target)
        assert part_checksum is not None
        checksum = crc32c_combine(checksum, part_checksum, part.stop - part.start)
    storage.publish(unfinished, shard.name, npy.file_bytes(shard.tokens, checkpoints.dtype))
    return checksum


def _write_table(
    shard: Shard,
    ordered: list[Piece],
    checkpoints: Checkpoints,
    paths: Sequence[str],
) -> tuple[pa.Table, dict[str, Any]]:
    """Writes a shard's table and mask; returns the table, and what the record says of both."""
    parts = (
        cut_documents(
            checkpoints.blocks.read_documents(piece.block, piece.stream, piece.start, piece.stop),
            piece.start,
            piece.stop,
            piece.at,
            piece.first_document,
        )
        for piece in ordered
    )
    table = join_documents(parts, paths, checkpoints.rule)
    _, table_file, mask_file = files_of(shard.name)
    content = DocumentTable.to_bytes(table)
    checksum = checkpoints.storage.write(table_file, content)
    fields = {"table_bytes": len(content), "table_crc32c": checksum_to_base64(checksum)}
    mask, of_mask = shard_mask(table, shard.tokens)
    if mask is not None:
        checkpoints.storage.write(mask_file, mask)
    return table, fields | of_mask


def shard_mask(table: pa.Table, tokens: int) -> tuple[bytes | None, dict[str, Any]]:
    """The loss mask that follows from a document table, if any, and what the record says of it."""
    ranges = learned_ranges(table)
    if ranges is None:
        return None, {}
    mask = mask_content(ranges, tokens)
    return mask, {
        "mask_bytes": len(mask),
        "mask_crc32c": checksum_to_base64(crc32c(mask)),
        "learned": count_learned(ranges),
    }


def _check_cover(name: str, ordered: list[Piece], tokens: int) -> None:
    position, problem = 0, ""
    for piece in ordered:
        if piece.at != position:
            problem = problem or f"expected a piece at token {position}, got {piece}"
        position += piece.stop - piece.start
    if position != tokens:
        problem = problem or f"its pieces hold {position} tokens, expected {tokens}"
    if problem:
        raise FineshardsError(
            f"{name}: {problem}. This is a bug in the runner or in fineshards; please report it."
        )


def write_bucket(
    bucket: Bucket,
    fragments: Iterable[Fragment],
    shuffle: Shuffle,
    checkpoints: Checkpoints,
    index: int = 0,
) -> BlockSummary:
    """Writes a token block of all documents of a bucket, unless it is there.

    Its summary is that of block `index` of file `bucket.number`, so that buckets are planned as
    files are.
    """
    name = TokenBlock("buckets", bucket.number, index)
    finished = checkpoints.blocks.read_summary(name)
    if finished is not None:
        return finished
    gathered = _gather(fragments, bucket, shuffle, checkpoints)
    table = gathered.table()
    order = key_order(_keys(table, shuffle))
    lengths = table["length"].to_numpy()
    documents = table.drop_columns(["length"])
    with checkpoints.blocks.create_block(name) as writer:
        for chosen, tokens in gathered.take(order):
            offsets = np.concatenate([[0], np.cumsum(lengths[chosen])])
            (sources,) = documents.take(pa.array(chosen)).combine_chunks().to_batches()
            writer.append(Documents(tokens, offsets, sources))
        counts = Counts(rows=len(order), documents=len(order), tokens=int(lengths[order].sum()))
        return writer.finish(index, 1, counts)


def _keys(sources: pa.Table | pa.RecordBatch, shuffle: Shuffle) -> npt.NDArray[np.uint64]:
    return shuffle_keys(shuffle.seed, sources["file"].to_numpy(), sources["row"].to_numpy())


def _gather(
    fragments: Iterable[Fragment], bucket: Bucket, shuffle: Shuffle, checkpoints: Checkpoints
) -> Gathered:
    """The documents of a bucket, in the order of token blocks."""
    gathered = Gathered(checkpoints.dtype)
    # So that documents with equal keys are in the order of file and row.
    ordered = sorted(fragments, key=lambda one: (one.block, one.start))

    def read(fragment: Fragment) -> Documents:
        documents = checkpoints.blocks.read_fragment(fragment)
        return _in_bucket(documents, bucket, shuffle) if bucket.bits else documents

    with ThreadPoolExecutor(1 if checkpoints.storage.on_disk else _REQUESTS) as pool:
        for documents in pool.map(read, ordered):
            gathered.append(documents)
    return gathered


def _in_bucket(documents: Documents, bucket: Bucket, shuffle: Shuffle) -> Documents:
    """Those of a fragment's documents that are in a bucket.

    A fragment has others, too, where a cell is larger. Then they are a copy, to free the fragment.
    """
    tokens, offsets, sources = documents
    shift, prefix = np.uint64(64 - bucket.bits), bucket.prefix
    # The documents of a fragment are in the order of their keys.
    ends = sources.take(pa.array([0, len(sources) - 1]))
    if np.all(_keys(ends, shuffle)[:, 0] >> shift == prefix):
        return documents
    prefixes = _keys(sources, shuffle)[:, 0] >> shift
    first, stop = np.searchsorted(prefixes, np.array([prefix, prefix + 1], np.uint64)).tolist()
    start, end = offsets[first], offsets[stop]
    of_bucket = sources.take(pa.array(range(first, stop), pa.int64()))
    return Documents(tokens[start:end].copy(), offsets[first : stop + 1] - start, of_bucket)
