"""Parquet: blocks from the footer, rows from row groups.

Only the needed columns are read, through a small buffer and in record batches. Memory does not
grow with the file, the row group or the other columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.formats.conversations import text_columns
from fineshards.sources.formats.footers import (
    cannot_decode,
    column_chunks,
    is_encrypted,
    leaves,
    open_source,
    place,
)
from fineshards.sources.formats.record_batches import (
    blocks_of,
    check_columns,
    columns_to_read,
    rows_of,
)
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, Rows
from fineshards.storage.ranges import RangeReader

# Without a buffer, pyarrow reads a whole column chunk at once, which may be all text of the file.
# For a remote file each fill is a request, so the buffer is not small either.
_READ_BUFFER = 8 << 20


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file, from its footer: row groups up to `block_bytes` of text.

    A block ends with the row group that reaches `block_bytes`.
    A file without rows has one empty block, so that every file is reported. Raises InputError for
    a file that is not parquet, lacks a column or has a column of the wrong type.
    """
    parquet = open_source(file, opened, _READ_BUFFER)
    check_columns(file, parquet.schema_arrow, columns)
    footer = parquet.metadata
    for name in (*([columns.id] if columns.id_required else []), *columns.others):
        next(column_chunks(file, footer, name), None)
    names = text_columns(columns, parquet.schema_arrow.names)
    parts = [leaf for name in names for leaf in leaves(footer, name)]
    texts = zip(*(column_chunks(file, footer, part) for part in parts), strict=True)
    sizes = [
        (
            footer.row_group(group).num_rows,
            sum(chunk.total_uncompressed_size for chunk in chunks if chunk),
        )
        for group, chunks in enumerate(texts)
    ]
    rows = sum(rows for rows, _ in sizes)
    if rows != footer.num_rows:
        raise InputError(
            f"{file.path}: its footer says {footer.num_rows} rows, but its row groups have {rows}. "
            "The file is damaged; download it again."
        )
    return blocks_of(file, sizes, block_bytes)


def schema(file: SourceFile, opened: BinaryIO) -> pa.Schema:
    """The types of all columns; raises InputError for a file that is not parquet."""
    return open_source(file, opened, _READ_BUFFER).schema_arrow


def share_read(file: SourceFile, opened: BinaryIO, block: Block, rows: int) -> float:
    """The share of a block that its first `rows` rows are, from 0 to 1."""
    footer = open_source(file, opened, _READ_BUFFER).metadata
    groups = range(block.first_group, block.stop_group)
    total: int = sum(footer.row_group(group).num_rows for group in groups)
    return rows / max(total, 1)


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError for a damaged row group."""
    parquet = open_source(file, opened, _READ_BUFFER)
    check_columns(file, parquet.schema_arrow, columns)
    names = columns_to_read(
        parquet.schema_arrow, columns, lambda name: not is_encrypted(file, parquet.metadata, name)
    )
    if isinstance(opened, RangeReader):
        opened.plan(_ranges(file, parquet.metadata, block, names))
    row = block.first_row
    for run in _runs(parquet.metadata, block):
        starts = np.cumsum([row, *run.rows])

        def where(row: int, run: _GroupRun = run, starts: npt.NDArray[np.int64] = starts) -> str:
            group = run.first + int(np.searchsorted(starts, row, side="right")) - 1
            return f"{place(group, group + 1)}, "

        for batch in _batches(file, parquet, run, names):
            numbers = np.arange(row, row + batch.num_rows, dtype=np.int64)
            yield rows_of(batch, numbers, columns, where)
            row += batch.num_rows
        if row != starts[-1]:
            raise InputError(
                f"{file.path}, {place(run.first, run.stop)}: has {row - starts[0]} rows, expected "
                f"{run.total_rows} from the footer. The file is damaged; download it again."
            )


def _ranges(
    file: SourceFile, footer: pq.FileMetaData, block: Block, names: list[str]
) -> list[tuple[int, int]]:
    """The bytes `[start, stop)` of the column chunks that a block is read from."""
    groups = range(block.first_group, block.stop_group)
    parts = [leaf for name in names for leaf in leaves(footer, name)]
    chunks = [chunk for part in parts for chunk in column_chunks(file, footer, part, groups)]
    starts = [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        for chunk in chunks
        if chunk is not None
    ]
    sizes = [chunk.total_compressed_size for chunk in chunks if chunk is not None]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


@dataclass(slots=True)
class _GroupRun:
    """Row groups that are read together: one, or small ones that fit into a record batch.

    rows: rows of each row group, and their sum. bytes: estimated size of their text.
    """

    first: int
    rows: list[int]
    total_rows: int
    bytes: int

    @property
    def stop(self) -> int:
        return self.first + len(self.rows)

    @property
    def batch_rows(self) -> int:
        """The number of rows that have about BATCH_BYTES of text, by the average row."""
        return max(1, min(BATCH_ROWS, BATCH_BYTES * self.total_rows // max(self.bytes, 1)))


def _runs(footer: pq.FileMetaData, block: Block) -> list[_GroupRun]:
    """The row groups of a block, in runs. A record batch costs some milliseconds, however small."""
    runs: list[_GroupRun] = []
    for group in range(block.first_group, block.stop_group):
        row_group = footer.row_group(group)
        rows = row_group.num_rows
        # The size of all columns is more than that of the text, and so is the block's.
        size = min(row_group.total_byte_size, block.bytes)
        last = runs[-1] if runs else None
        if last is None or last.total_rows + rows > BATCH_ROWS or last.bytes + size > BATCH_BYTES:
            runs.append(_GroupRun(group, [rows], rows, size))
        else:
            last.rows.append(rows)
            last.total_rows += rows
            last.bytes += size
    return runs


def _batches(
    file: SourceFile, parquet: pq.ParquetFile, run: _GroupRun, names: list[str]
) -> Iterator[pa.RecordBatch]:
    groups = range(run.first, run.stop)
    try:
        yield from parquet.iter_batches(run.batch_rows, groups, names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        for group in groups if len(groups) > 1 else ():
            rows = run.rows[group - run.first]
            for _ in _batches(file, parquet, _GroupRun(group, [rows], rows, run.bytes), names):
                pass
        raise cannot_decode(file, run.first, run.stop, error) from error
