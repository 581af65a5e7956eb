"""Arrow IPC: the file format, which Feather 2 is, in blocks of record batches; or a stream.

A stream, which the `datasets` library writes to its cache, has no footer and is one block. Only the
needed columns are decoded. A record batch is read as a whole, so a worker's memory follows the
largest one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.formats.record_batches import (
    blocks_of,
    check_columns,
    columns_to_read,
    rows_of,
)
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, Rows

# https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
_FILE = b"ARROW1"
_FEATHER_1 = b"FEA1"
# Before the length of a message, which is 0 at the end of a stream. Not before version 0.15.
_CONTINUATION = b"\xff\xff\xff\xff"


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file: record batches up to `block_bytes`, or all of a stream.

    A block ends with the record batch that reaches `block_bytes`, with all its columns. Raises
    InputError for a file that is damaged or lacks a column.
    """
    if not _is_file(file, opened):
        with _damage_explained(file):
            check_columns(file, ipc.open_stream(opened).schema, columns)
        _check_end_of_stream(file, opened)
        return [Block(file.index, 0, 1, 0, 0, 0, file.size)]
    with _damage_explained(file):
        check_columns(file, ipc.open_file(opened).schema, columns)
        return blocks_of(file, _batch_sizes(opened, file.size), block_bytes)


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError for a damaged record batch."""
    found = schema(file, opened)
    check_columns(file, found, columns)
    with _damage_explained(file):
        is_file = _is_file(file, opened)
        wanted = columns_to_read(found, columns)
        options = ipc.IpcReadOptions(
            included_fields=[found.names.index(name) for name in wanted], use_threads=False
        )
        opened.seek(0)
        reader = (ipc.open_file if is_file else ipc.open_stream)(opened, options=options)
    row = block.first_row
    for batch in _batches(file, reader, block, is_file):
        _check_content(file, batch, row)
        size = max(1, min(BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, size):
            part = batch.slice(start, size)
            yield rows_of(part, np.arange(row, row + part.num_rows, dtype=np.int64), columns)
            row += part.num_rows
    if not is_file and opened.tell() != file.size:
        raise InputError(
            f"{file.path}: its stream ends at byte {opened.tell():,} of {file.size:,}. Streams "
            "that were joined cannot be read; write them to a file each."
        )


def schema(file: SourceFile, opened: BinaryIO) -> pa.Schema:
    """The types of all columns; raises InputError for a file that is damaged."""
    with _damage_explained(file):
        is_file = _is_file(file, opened)
        return (ipc.open_file if is_file else ipc.open_stream)(opened).schema


def share_read(file: SourceFile, opened: BinaryIO, block: Block, rows: int) -> float:
    """The share of a block that its first `rows` rows are, from 0 to 1."""
    if not _is_file(file, opened, at=opened.tell()):
        return opened.tell() / max(block.bytes, 1)
    sizes = list(_batch_sizes(opened, file.size))[block.first_group : block.stop_group]
    return rows / max(sum(rows for rows, _ in sizes), 1)


def _is_file(file: SourceFile, opened: BinaryIO, at: int = 0) -> bool:
    """Whether this is the file format, and not a stream. Leaves the file at `at`."""
    opened.seek(0)
    first_bytes = opened.read(len(_FILE))
    opened.seek(at)
    if first_bytes.startswith(_FEATHER_1):
        raise InputError(
            f"{file.path} is in version 1 of Feather. Write it again in version 2, the default of "
            "pyarrow.feather.write_feather."
        )
    return first_bytes == _FILE


def _check_end_of_stream(file: SourceFile, opened: BinaryIO) -> None:
    """Raises InputError for a stream without its mark of the end: its writer did not finish."""
    opened.seek(0)
    mark = _CONTINUATION if opened.read(4) == _CONTINUATION else b""
    opened.seek(max(file.size - 8, 0))
    if not opened.read(8).endswith(mark + bytes(4)):
        raise InputError(
            f"{file.path}: does not end as a finished Arrow stream. It is truncated, or its writer "
            "was stopped; write or download it again."
        )


def _batches(
    file: SourceFile, reader: Any, block: Block, is_file: bool
) -> Iterator[pa.RecordBatch]:
    numbers = range(block.first_group, block.stop_group)
    number = block.first_group
    while not is_file or number in numbers:
        with _damage_explained(file, f", record batch {number}"):
            try:
                batch = reader.get_batch(number) if is_file else reader.read_next_batch()
            except StopIteration:
                return
        yield batch
        number += 1


def _check_content(file: SourceFile, batch: pa.RecordBatch, row: int) -> None:
    """Raises InputError for offsets beyond the data, which pyarrow takes on trust when it reads."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):  # which is for `rows_of`
                continue
            raise InputError(
                f"{file.path}, column {name!r} from row {row}: cannot be decoded: {error}. "
                "The file is damaged; download it again."
            ) from error


@contextmanager
def _damage_explained(file: SourceFile, place: str = "") -> Iterator[None]:
    try:
        yield
    # A damaged length may be more than there is memory for.
    except (pa.ArrowException, OSError, struct.error, ValueError, MemoryError) as error:
        raise InputError(
            f"{file.path}{place} ({file.size} bytes) is not readable Arrow IPC: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}. "
            "It may be truncated or in another format; download it again, or exclude it."
        ) from error


def _batch_sizes(opened: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """The rows and bytes of each record batch, from the footer and the batches' metadata.

    pyarrow tells neither without reading the batches. Flatbuffers, and the schemas of both, are at
    https://github.com/apache/arrow/tree/main/format (File.fbs, Message.fbs).
    """
    opened.seek(size - 10)
    (length,) = struct.unpack("<i6x", opened.read(10))
    opened.seek(size - 10 - length)
    footer = _FlatbufferTable.root(opened.read(length))
    for offset, metadata_length, body_length in footer.structs(3, "<qi4xq"):
        opened.seek(offset)
        content = opened.read(metadata_length)
        message = _FlatbufferTable.root(content[8 if content.startswith(_CONTINUATION) else 4 :])
        yield message.table(2).int64(0), body_length


class _FlatbufferTable:
    """A table of a flatbuffer. Raises struct.error or ValueError for a damaged one."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at

    @classmethod
    def root(cls, content: bytes) -> _FlatbufferTable:
        """The outermost table."""
        return cls(content, struct.unpack_from("<I", content)[0])

    def _field(self, index: int) -> int:
        """Where a field is; 0 if the table leaves it out."""
        (back,) = struct.unpack_from("<i", self._content, self._at)
        fields = self._at - back
        (length,) = struct.unpack_from("<H", self._content, fields)
        if 4 + 2 * index >= length:
            return 0
        (offset,) = struct.unpack_from("<H", self._content, fields + 4 + 2 * index)
        return self._at + offset if offset else 0

    def int64(self, index: int) -> int:
        """A number, which is 0 if it is left out."""
        at = self._field(index)
        number: int = struct.unpack_from("<q", self._content, at)[0] if at else 0
        return number

    def table(self, index: int) -> _FlatbufferTable:
        """A table within this one."""
        at = self._field(index)
        if not at:
            raise ValueError("the metadata of a record batch is incomplete")
        return _FlatbufferTable(self._content, at + struct.unpack_from("<I", self._content, at)[0])

    def structs(self, index: int, layout: str) -> Iterator[tuple[int, ...]]:
        """The structs of a vector."""
        at = self._field(index)
        if not at:
            return
        at += struct.unpack_from("<I", self._content, at)[0]
        (count,) = struct.unpack_from("<I", self._content, at)
        for number in range(count):
            yield struct.unpack_from(
                layout, self._content, at + 4 + number * struct.calcsize(layout)
            )
