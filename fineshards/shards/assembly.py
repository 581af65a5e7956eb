"""Assembles a shard from its pieces: a header, then bytes of token blocks.

With `compose`, Cloud Storage joins the token blocks on the server. With `stream`, their bytes pass
through the worker in small chunks. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pyarrow as pa

from fineshards.errors import FineshardsError
from fineshards.shards import npy
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.documents import DocumentTable, cut_documents, join_documents
from fineshards.shards.layout import Layout, ShardKey, table_name
from fineshards.shards.records import Piece, ShardRecord
from fineshards.storage.base import Part
from fineshards.storage.checksums import checksum_to_base64


def write_shard(
    key: ShardKey,
    pieces: Iterable[Piece],
    layout: Layout,
    checkpoints: Checkpoints,
    paths: Sequence[str],
    assembly: str = "auto",
) -> ShardRecord:
    """Writes a shard and its document table, unless both are finished; returns the shard's record.

    pieces: in any order. paths: of the source files, by index. assembly: `compose`, `stream`, or
    `auto`, which is compose on gs:// and stream elsewhere. Raises FineshardsError if the pieces do
    not cover the shard exactly.
    """
    name = layout.shard_name(key)
    finished = checkpoints.read_shard_record(name)
    if finished is not None:
        return finished
    ordered = sorted(pieces, key=lambda piece: piece.at)
    tokens = layout.shard_length(key)
    _check_cover(name, ordered, tokens)
    storage = checkpoints.storage
    size = checkpoints.dtype.itemsize
    parts = [
        Part(
            checkpoints.tokens_name(piece.block, piece.stream),
            piece.start * size,
            piece.stop * size,
        )
        for piece in ordered
    ]
    header = npy.header(tokens, checkpoints.dtype)
    if storage.composes and assembly != "stream":
        # In this thread alone: another one would need connections of its own for each shard.
        checksum = storage.compose(name, header, parts)
        table, table_bytes, table_checksum = _write_table(name, ordered, checkpoints, paths)
    else:
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(_write_table, name, ordered, checkpoints, paths)
            checksum = storage.assemble(name, header, parts)
            table, table_bytes, table_checksum = pending.result()
    record = ShardRecord(
        name=name,
        split=key.split,
        index=key.index,
        tokens=tokens,
        bytes=npy.file_bytes(tokens, checkpoints.dtype),
        crc32c=checksum_to_base64(checksum),
        pieces=table.num_rows,
        documents=table["start"].to_numpy().tolist().count(0),
        first_document=table["document"][0].as_py(),
        table_bytes=table_bytes,
        table_crc32c=checksum_to_base64(table_checksum),
    )
    checkpoints.write_shard_record(record)
    return record


def _write_table(
    name: str, ordered: list[Piece], checkpoints: Checkpoints, paths: Sequence[str]
) -> tuple[pa.Table, int, int]:
    """Writes a shard's document table; returns it, the size of its file and its CRC-32C."""
    parts = (
        cut_documents(
            checkpoints.read_documents(piece.block, piece.stream, piece.start, piece.stop),
            piece.start,
            piece.stop,
            piece.at,
            piece.first_document,
        )
        for piece in ordered
    )
    table = join_documents(parts, paths, checkpoints.rule)
    file = BytesIO()
    DocumentTable.write(table, file)
    content = file.getvalue()
    return table, len(content), checkpoints.storage.write(table_name(name), content)


def _check_cover(name: str, ordered: list[Piece], tokens: int) -> None:
    position = 0
    for piece in ordered:
        if piece.at != position:
            raise FineshardsError(
                f"{name}: expected a piece at token {position}, got {piece}. This is a bug in the "
                "runner or in fineshards; please report it."
            )
        position += piece.stop - piece.start
    if position != tokens:
        raise FineshardsError(
            f"{name}: its pieces hold {position} tokens, expected {tokens}. This is a bug in the "
            "runner or in fineshards; please report it."
        )
