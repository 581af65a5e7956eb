"""Assembles a shard from its pieces: a header, then bytes of token blocks.

With `compose`, Cloud Storage joins the token blocks on the server. With `stream`, their bytes pass
through the worker in small chunks. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from fineshards.errors import FineshardsError
from fineshards.shards import npy
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Piece, ShardRecord
from fineshards.shards.layout import Shard, files_of
from fineshards.shards.masks import count_learned, mask_content
from fineshards.shards.tables.documents import (
    DocumentTable,
    cut_documents,
    join_documents,
    learned_ranges,
)
from fineshards.storage.base import FileRange
from fineshards.storage.checksums import checksum_to_base64, crc32c


def write_shard(
    shard: Shard,
    pieces: Iterable[Piece],
    checkpoints: Checkpoints,
    paths: Sequence[str],
    assembly: str = "auto",
) -> ShardRecord:
    """Writes a shard and its document table, finished or not; returns the shard's record.

    pieces: in any order. paths: of the source files, by index. assembly: `compose`, `stream`, or
    `auto`, which is compose on gs:// and s3://, and stream elsewhere. Raises FineshardsError if the
    pieces do not cover the shard exactly.
    """
    name, tokens = shard.name, shard.tokens
    ordered = sorted(pieces, key=lambda piece: piece.at)
    _check_cover(name, ordered, tokens)
    storage = checkpoints.storage
    size = checkpoints.dtype.itemsize
    parts = [
        FileRange(
            checkpoints.blocks.tokens_name(piece.block, piece.stream),
            piece.start * size,
            piece.stop * size,
        )
        for piece in ordered
    ]
    header = npy.header(tokens, checkpoints.dtype)
    if storage.composes and assembly != "stream":
        # In this thread alone: another one would need connections of its own for each shard.
        checksum = storage.compose(name, header, parts)
        table, of_files = _write_table(shard, ordered, checkpoints, paths)
    else:
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(_write_table, shard, ordered, checkpoints, paths)
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


def _write_table(
    shard: Shard,
    ordered: list[Piece],
    checkpoints: Checkpoints,
    paths: Sequence[str],
) -> tuple[pa.Table, dict[str, Any]]:
    """Writes a shard's document table and its loss mask, if it has one.

    Returns the table, and the fields of the shard's record about the two files.
    """
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
    """The loss mask that follows from a document table, and the fields of the record about it.

    None, and none, for a shard of texts.
    """
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
