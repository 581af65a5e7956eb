"""Assembles a shard from its pieces: a header, then bytes of token blocks.

With `compose`, Cloud Storage joins the token blocks on the server. With `stream`, their bytes pass
through the worker in small chunks. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pyarrow as pa

from fineshards.errors import FineshardsError, OutputError
from fineshards.shards import npy
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Piece, ShardRecord
from fineshards.shards.layout import Layout, ShardKey, SplitRule, table_name
from fineshards.shards.tables.documents import (
    DocumentTable,
    cut_documents,
    join_documents,
    table_schema,
)
from fineshards.storage.base import READ_AHEAD, FileRange, Storage
from fineshards.storage.checksums import (
    checksum_from_base64,
    checksum_to_base64,
    crc32c,
    crc32c_combine,
    file_checksum,
)

# How often a longer shard is begun again because the shorter one was replaced meanwhile.
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Shorter:
    """The last shard of an earlier generation, from whose content a longer one begins.

    part: its tokens. version, table_version: of the files, which the longer ones replace. They may
    be the longer ones already, if an earlier attempt has come that far. table: its documents.
    table_content: their file.
    """

    part: FileRange
    version: str | None
    table_version: str | None
    table: pa.Table
    table_content: bytes

    @classmethod
    def find(cls, record: ShardRecord, checkpoints: Checkpoints, paths: Sequence[str]) -> Shorter:
        """Reads a shard and its table; raises OutputError if they are not those of its record."""
        storage, name = checkpoints.storage, record.name
        version, table_version = storage.version(name), storage.version(table_name(name))
        size = checkpoints.dtype.itemsize
        part = FileRange(name, npy.HEADER_BYTES, npy.HEADER_BYTES + record.tokens * size)
        if prefix_checksum(storage, part, checkpoints.dtype) != record.crc32c:
            raise damaged(storage, name)
        head = table_head(storage.read(table_name(name)), record, paths, checkpoints.rule)
        if head is None:
            raise damaged(storage, table_name(name))
        try:
            table = DocumentTable.parse(head, table_schema(checkpoints.rule, 3))
            join_documents((), paths, checkpoints.rule, table)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise damaged(storage, table_name(name)) from error
        return cls(part, version, table_version, table, head)


def table_head(
    content: bytes, record: ShardRecord, paths: Sequence[str], rule: SplitRule
) -> bytes | None:
    """The content of a shard's document table, from that of a longer shard that begins with it.

    Also from its own content. None if it is not what the record says.
    """
    if len(content) == record.table_bytes:
        return content if checksum_to_base64(crc32c(content)) == record.table_crc32c else None
    try:
        rows = DocumentTable.parse(content, table_schema(rule, 3)).slice(0, record.pieces)
        head = _table_bytes(join_documents((), paths, rule, rows))
    except (pa.ArrowException, OSError, ValueError):
        return None
    return head if checksum_to_base64(crc32c(head)) == record.table_crc32c else None


def restore_shard(
    record: ShardRecord,
    checkpoints: Checkpoints,
    paths: Sequence[str],
    check: Callable[[], object],
) -> None:
    """Makes a shard and its table what they were before a longer one replaced them.

    paths: of the source files, by index. check: called before each is replaced; what it raises ends
    the work. Raises OutputError if they are damaged.
    """
    storage, table = checkpoints.storage, table_name(record.name)
    if (storage.size(record.name), storage.size(table)) == (record.bytes, record.table_bytes):
        return
    longer = Shorter.find(record, checkpoints, paths)
    if storage.size(record.name) != record.bytes:
        check()
        header = npy.header(record.tokens, checkpoints.dtype)
        storage.assemble(record.name, header, [longer.part], longer.version)
    if storage.size(table) != record.table_bytes:
        check()
        storage.write(table, longer.table_content, over=longer.table_version)


def prefix_checksum(storage: Storage, part: FileRange, dtype: np.dtype[np.unsignedinteger]) -> str:
    """The checksum that a shard would have if its tokens were those of this part of it alone."""
    size = part.stop - part.start
    checksum = crc32c(npy.header(size // dtype.itemsize, dtype))
    with storage.open(part.name, READ_AHEAD) as opened:
        opened.seek(part.start)
        return checksum_to_base64(file_checksum(opened, checksum, size))


def damaged(storage: Storage, name: str) -> OutputError:
    """The error for a file that an append would build on, and that is missing or has changed."""
    return OutputError(
        f"{storage.path(name)} is not what the manifest says, so nothing is added to the dataset. "
        "See what fineshards verify says, and run fineshards repair."
    )


def write_shard(
    key: ShardKey,
    pieces: Iterable[Piece],
    layout: Layout,
    checkpoints: Checkpoints,
    paths: Sequence[str],
    assembly: str = "auto",
    before: ShardRecord | None = None,
) -> ShardRecord:
    """Writes a shard and its document table, unless both are finished; returns the shard's record.

    pieces: in any order. paths: of the source files, by index. assembly: `compose`, `stream`, or
    `auto`, which is compose on gs:// and s3://, and stream elsewhere. before: the record of a
    shorter shard of the same name, which this one begins with and replaces. Raises FineshardsError
    if the pieces do not cover the shard exactly, and OutputError if the shorter shard is damaged.
    """
    name = layout.shard_name(key)
    finished = checkpoints.read_shard_record(name)
    if finished is not None and _is_whole(finished, checkpoints.storage):
        return finished
    ordered = sorted(pieces, key=lambda piece: piece.at)
    for _ in range(_ATTEMPTS):
        found = _versions(name, checkpoints.storage) if before else None
        try:
            return _write_shard(key, ordered, layout, checkpoints, paths, assembly, before)
        except OutputError:
            # Another attempt may have replaced the shorter shard while this one was reading it.
            if before is None or _versions(name, checkpoints.storage) == found:
                raise
    return _write_shard(key, ordered, layout, checkpoints, paths, assembly, before)


def _is_whole(record: ShardRecord, storage: Storage) -> bool:
    """Whether what an earlier run left as a finished shard still is one."""
    size, checksum = record.table_bytes, record.table_crc32c
    if size is None or checksum is None:
        return False
    return storage.matches(record.name, record.bytes, record.crc32c) and storage.matches(
        table_name(record.name), size, checksum
    )


def _versions(name: str, storage: Storage) -> tuple[str | None, str | None]:
    return storage.version(name), storage.version(table_name(name))


def _write_shard(
    key: ShardKey,
    ordered: list[Piece],
    layout: Layout,
    checkpoints: Checkpoints,
    paths: Sequence[str],
    assembly: str,
    before: ShardRecord | None,
) -> ShardRecord:
    name = layout.shard_name(key)
    tokens = layout.shard_length(key)
    _check_cover(name, ordered, before.tokens if before else 0, tokens)
    storage = checkpoints.storage
    size = checkpoints.dtype.itemsize
    shorter = Shorter.find(before, checkpoints, paths) if before else None
    parts = [shorter.part] if shorter else []
    parts += [
        FileRange(
            checkpoints.tokens_name(piece.block, piece.stream),
            piece.start * size,
            piece.stop * size,
        )
        for piece in ordered
    ]
    header = npy.header(tokens, checkpoints.dtype)
    if storage.composes and assembly != "stream":
        # In this thread alone: another one would need connections of its own for each shard.
        checksum = storage.compose(name, header, parts, shorter.version if shorter else None)
        table, table_bytes, table_checksum = _write_table(
            name, ordered, checkpoints, paths, shorter
        )
    else:
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(_write_table, name, ordered, checkpoints, paths, shorter)
            checksum = storage.assemble(name, header, parts, shorter.version if shorter else None)
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
        unredacted_crc32c=_unredacted(checksum, (tokens - before.tokens) * size, before)
        if before
        else None,
    )
    checkpoints.write_shard_record(record)
    return record


def _unredacted(checksum: int, more: int, before: ShardRecord) -> str | None:
    """The checksum that a longer shard would have without redactions in the shorter one.

    more: bytes that it has more. Checksums of equally long files are linear: they differ as the
    shorter ones do, followed by zeros.
    """
    if before.unredacted_crc32c is None:
        return None
    redacted, unredacted = map(checksum_from_base64, (before.crc32c, before.unredacted_crc32c))
    return checksum_to_base64(checksum ^ crc32c_combine(redacted ^ unredacted, 0, more))


def _write_table(
    name: str,
    ordered: list[Piece],
    checkpoints: Checkpoints,
    paths: Sequence[str],
    shorter: Shorter | None,
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
    table = join_documents(parts, paths, checkpoints.rule, shorter.table if shorter else None)
    content = _table_bytes(table)
    over = shorter.table_version if shorter else None
    return table, len(content), checkpoints.storage.write(table_name(name), content, over=over)


def _table_bytes(table: pa.Table) -> bytes:
    file = BytesIO()
    DocumentTable.write(table, file)
    return file.getvalue()


def _check_cover(name: str, ordered: list[Piece], position: int, tokens: int) -> None:
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
