"""Parquet: blocks from the footer, rows from row groups.

Only the needed columns are read, through a small buffer and in record batches. Memory does not
grow with the file, the row group or the other columns.

pyarrow cannot report an error that C++ raises while it describes a column chunk (an encrypted
column, a damaged footer): the process aborts. Reading a column chunk does report the same error,
and it describes the chunk before it asks for the first byte. So `_chunks` first begins to read
each chunk, from a file that refuses to be read.
"""

import io
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.shards.parquet_file import open_parquet
from fineshards.sources.columns import check_columns, text_columns, wanted_columns
from fineshards.sources.formats.format import Format, reason_of
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, RowBatch
from fineshards.storage.ranges import RangeReader

# Without a buffer, pyarrow reads a whole column chunk at once, which may be all text of the file.
# For a remote file each fill is a request, so the buffer is not small either.
_READ_BUFFER = 8 << 20
# Footers that this process has parsed. One of 20,000 row groups takes a third of a second, and some
# hundred megabytes. So many bytes of them are kept, as they are in files.
_footers: dict[SourceFile, pq.FileMetaData] = {}
_FOOTER_BYTES = 32 << 20


class Parquet(Format):
    """Row groups of columns, which compress inside."""

    endings = (".parquet", ".parq")
    compressions = ("none",)
    # pyarrow asks for the part of a column chunk that it needs. Reading ahead would fetch columns
    # that no one asked for.
    read_ahead = discovery_read_ahead = 0

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format."""
        return open_source(file, opened).schema_arrow

    def blocks(
        self, file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int
    ) -> list[Block]:
        """See Format. A block ends with the row group that reaches `block_bytes` of text.

        A file without rows has one empty block, so that every file is reported.
        """
        parquet = open_source(file, opened)
        schema = check_columns(file, parquet.schema_arrow, columns)
        footer = parquet.metadata
        groups = range(footer.num_row_groups)
        for _ in _chunks(file, footer, wanted_columns(schema, columns), groups[:1]):
            pass
        names = [*text_columns(columns, schema.names)]
        runs: list[list[int]] = []  # first row group, stop, first row, bytes
        row = 0
        for group, chunks in enumerate(_chunks(file, footer, names, groups)):
            if not runs or runs[-1][3] >= block_bytes:
                runs.append([group, group, row, 0])
            runs[-1][1] = group + 1
            runs[-1][3] += sum(chunk.total_uncompressed_size for chunk in chunks)
            row += footer.row_group(group).num_rows
        if row != footer.num_rows:
            raise InputError(
                f"{file.path}: its footer says {footer.num_rows} rows, but its row groups have "
                f"{row}. The file is damaged; download it again."
            )
        runs = runs or [[0, 0, 0, 0]]
        return [Block(file.index, index, len(runs), *run) for index, run in enumerate(runs)]

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format."""
        parquet = open_source(file, opened)
        footer = parquet.metadata
        names = wanted_columns(parquet.schema_arrow, columns)
        groups = range(block.first_group, block.stop_group)
        if isinstance(opened, RangeReader):
            chunks = chain.from_iterable(_chunks(file, footer, names, groups))
            opened.plan([*map(_range, chunks)])
        rows = sum(footer.row_group(group).num_rows for group in groups)
        size = sum(footer.row_group(group).total_byte_size for group in groups)
        # By the average row, so BATCH_ROWS bounds a batch whose rows are longer. The size of all
        # columns is more than that of the text, and so is the block's.
        at_once = max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(min(size, block.bytes), 1)))
        row, stop = block.first_row, block.first_row + rows
        for batch in _batches(file, parquet, groups, names, at_once) if groups else ():
            yield RowBatch(np.arange(row, row + batch.num_rows, dtype=np.int64), batch, [])
            row += batch.num_rows
        if row != stop:
            raise InputError(
                f"{file.path}, {_place(groups)}: has {row - stop + rows} rows, expected {rows} "
                "from the footer. The file is damaged; download it again."
            )


def open_source(file: SourceFile, opened: BinaryIO) -> pq.ParquetFile:
    """Opens a source file, with the footer of an earlier call if there was one.

    The footer belongs to one version of the file: `file` holds its size and identity. Raises
    InputError for a file that is not Parquet, or has a column name that is not UTF-8.
    """
    footer = _footers.get(file)
    try:
        parquet = open_parquet(opened, _READ_BUFFER, footer)
        _paths(parquet.metadata)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file.path}: the name of a column is not valid UTF-8: {error.object!r}. Rename the "
            "column, or download the file again if it is damaged."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file.path} ({file.size} bytes) is not a readable parquet file: {reason_of(error)}. "
            "It may be truncated or in another format; download it again, or exclude it."
        ) from error
    if footer is None:
        footers = [parquet.metadata, *_footers.values()]
        if sum(parsed.serialized_size for parsed in footers) > _FOOTER_BYTES:
            _footers.clear()
        _footers[file] = parquet.metadata
    return parquet


def _chunks(
    file: SourceFile, footer: pq.FileMetaData, columns: list[str], groups: Sequence[int]
) -> Iterator[list[pq.ColumnChunkMetaData]]:
    """What the footer says of columns in each of some row groups, but of those without rows.

    Raises InputError if the footer is damaged, or a column encrypted.
    """
    # A nested column has several parts.
    begins = (*(f"{name}." for name in columns),)
    parts = [
        (index, path)
        for index, path in enumerate(_paths(footer))
        if path in columns or path.startswith(begins)
    ]
    unreadable = open_parquet(cast(BinaryIO, _Unreadable(file.size)), footer=footer)
    for group in groups:
        chunks = []
        for index, path in parts:
            try:
                for _ in unreadable.iter_batches(1, [group], [path], use_threads=False):
                    break
            except _ReadError:
                chunks.append(footer.row_group(group).column(index))
            except (pa.ArrowException, OSError) as error:
                raise _cannot_decode(file, range(group, group + 1), error) from error
        yield chunks


def _range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """The bytes `[start, stop)` of a column chunk."""
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size


def _batches(
    file: SourceFile, parquet: pq.ParquetFile, groups: range, names: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    try:
        yield from parquet.iter_batches(rows, groups, names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        # Which row group it is.
        for group in groups if len(groups) > 1 else ():
            for _ in _batches(file, parquet, range(group, group + 1), names, rows):
                pass
        raise _cannot_decode(file, groups, error) from error


def _paths(footer: pq.FileMetaData) -> list[str]:
    """The names of all columns, those in structs with dots; raises UnicodeDecodeError."""
    return [footer.schema.column(index).path for index in range(footer.num_columns)]


def _cannot_decode(file: SourceFile, groups: range, error: Exception) -> InputError:
    """The error for row groups that cannot be read."""
    if "decrypt" in str(error).lower():
        return InputError(
            f"{file.path}, {_place(groups)}: a column that is needed is encrypted. Decrypt "
            "the file, or exclude it."
        )
    return InputError(
        f"{file.path}, {_place(groups)}: cannot be decoded: {reason_of(error)}. "
        "The file is damaged; download it again."
    )


def _place(groups: range) -> str:
    """Row groups as words."""
    more = len(groups) > 1
    return f"row groups {groups[0]} to {groups[-1]}" if more else f"row group {groups[0]}"


class _ReadError(Exception):
    """A byte of an unreadable file was asked for."""


class _Unreadable(io.BytesIO):
    """A file of which nothing can be read but its size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return super().seek(offset + self._size if whence == io.SEEK_END else offset)

    def read(self, size: int | None = -1) -> bytes:
        raise _ReadError
