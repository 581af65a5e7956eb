"""A shard from its pieces: a header, then bytes copied from token blocks. No token is in memory."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from shards import npy
from shards.checkpoints import Checkpoints
from shards.documents import DocumentTable, cut_documents, join_documents
from shards.errors import FineshardsError
from shards.layout import Layout, ShardKey, table_name
from shards.records import Piece, ShardRecord

# Small enough to stay in a core's cache between the read, the checksum and the write.
_COPY_BYTES = 1 << 20


def write_shard(
    key: ShardKey,
    pieces: Iterable[Piece],
    layout: Layout,
    checkpoints: Checkpoints,
    paths: Sequence[str],
) -> ShardRecord:
    """Writes a shard and its document table, or finds them finished; returns the shard's record.

    paths: of the source files, by number. Raises FineshardsError if the pieces, in whatever order
    they come, do not cover the shard exactly.
    """
    name = layout.shard_name(key)
    finished = checkpoints.read_shard_record(name)
    if finished is not None:
        return finished
    ordered = sorted(pieces, key=lambda piece: piece.at)
    tokens = layout.shard_length(key)
    _check_cover(name, ordered, tokens)
    storage = checkpoints.storage
    table = join_documents(
        cut_documents(
            checkpoints.read_documents(piece.file, piece.block, piece.start, piece.stop),
            piece.start,
            piece.stop,
            piece.at,
            piece.first_document,
            paths[piece.file],
        )
        for piece in ordered
    )
    with storage.create(table_name(name)) as opened:
        DocumentTable.write(table, opened)
    with storage.create(name) as shard:
        header = npy.header(tokens, checkpoints.dtype)
        shard.write(header)
        checksum: int = google_crc32c.value(header)
        buffer = np.empty(_COPY_BYTES, np.uint8)
        for piece in ordered:
            with storage.open(checkpoints.tokens_name(piece.file, piece.block)) as block:
                checksum = _copy_tokens(
                    name, piece, checkpoints.dtype, block, shard, buffer, checksum
                )
    record = ShardRecord(
        name=name,
        split=key.split,
        index=key.index,
        tokens=tokens,
        bytes=npy.file_bytes(tokens, checkpoints.dtype),
        crc32c=_printed(checksum),
        pieces=table.num_rows,
        documents=table["start"].to_numpy().tolist().count(0),
        first_document=table["document"][0].as_py(),
    )
    checkpoints.write_shard_record(record)
    return record


def file_crc32c(opened: BinaryIO) -> str:
    """The checksum of the rest of a file, in the form of `ShardRecord.crc32c`."""
    checksum = 0
    buffer = np.empty(_COPY_BYTES, np.uint8)
    while size := opened.readinto(buffer.data):  # type: ignore[attr-defined]
        checksum = google_crc32c.extend(checksum, buffer[:size])
    return _printed(checksum)


def _check_cover(name: str, ordered: list[Piece], tokens: int) -> None:
    position = 0
    for piece in ordered:
        if piece.at != position:
            raise FineshardsError(
                f"{name}: the next piece should stand at token {position}, got {piece}. "
                "This is a fault of the runner or of fineshards: please report it."
            )
        position += piece.stop - piece.start
    if position != tokens:
        raise FineshardsError(
            f"{name}: its pieces hold {position} tokens, expected {tokens}. "
            "This is a fault of the runner or of fineshards: please report it."
        )


def _copy_tokens(
    name: str,
    piece: Piece,
    dtype: np.dtype[np.unsignedinteger],
    block: BinaryIO,
    shard: BinaryIO,
    buffer: npt.NDArray[np.uint8],
    checksum: int,
) -> int:
    """Appends a piece to a shard; returns the checksum of all that is in the shard by then.

    Bytes go through one small buffer. `copy_file_range` would save nothing: the header makes the
    ranges unaligned, so no file system can share them, and the checksum needs the bytes anyway.
    """
    size = dtype.itemsize
    block.seek(piece.start * size)
    left = (piece.stop - piece.start) * size
    while left:
        count = block.readinto(buffer[:left].data)  # type: ignore[attr-defined]
        if not count:
            raise FineshardsError(
                f"{name}: the token block {piece.file}-{piece.block} ended {left} bytes early. "
                "Somebody changed the checkpoints folder; start anew with --overwrite."
            )
        shard.write(buffer[:count].data)
        checksum = google_crc32c.extend(checksum, buffer[:count])
        left -= count
    return checksum


def _printed(checksum: int) -> str:
    """A checksum as Cloud Storage prints it: base64 of its big-endian bytes."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()
