"""Parquet: blocks from the footer, rows from row groups.

Only the needed columns are read, through a small buffer and in record batches. Memory does not
grow with the file, the row group or the other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineshards.errors import InputError
from fineshards.shards.job import Columns
from fineshards.shards.records import BadRow, Block, SourceFile
from fineshards.sources.footers import (
    cannot_decode,
    column_chunks,
    is_encrypted,
    open_source,
    place,
)
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, LABEL_COLUMNS, Rows

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
    _check_columns(file, parquet.schema_arrow, columns)
    footer = parquet.metadata
    runs: list[list[int]] = []  # first group, stop group, first row, bytes
    row = 0
    if columns.id_required:
        next(column_chunks(file, footer, columns.id), None)
    for group, chunk in enumerate(column_chunks(file, footer, columns.text)):
        if not runs or runs[-1][3] >= block_bytes:
            runs.append([group, group, row, 0])
        runs[-1][1] = group + 1
        runs[-1][3] += chunk.total_uncompressed_size if chunk else 0
        row += footer.row_group(group).num_rows
    if row != footer.num_rows:
        raise InputError(
            f"{file.path}: its footer says {footer.num_rows} rows, but its row groups have {row}. "
            "The file is damaged; download it again."
        )
    runs = runs or [[0, 0, 0, 0]]
    return [
        Block(file.index, index, len(runs), first, stop, first_row, size)
        for index, (first, stop, first_row, size) in enumerate(runs)
    ]


def share_read(file: SourceFile, opened: BinaryIO, block: Block, rows: int) -> float:
    """The share of a block that its first `rows` rows are, from 0 to 1."""
    footer = open_source(file, opened, _READ_BUFFER).metadata
    groups = range(block.first_group, block.stop_group)
    total: int = sum(footer.row_group(group).num_rows for group in groups)
    return rows / max(total, 1)


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError for a damaged row group."""
    parquet = open_source(file, opened, _READ_BUFFER)
    schema = parquet.schema_arrow
    _check_columns(file, schema, columns)
    names = _names(file, parquet, columns)
    labels = [name for name in LABEL_COLUMNS if name in names and _has(schema, name, _is_text)]
    row = block.first_row
    for run in _runs(parquet.metadata, block):
        starts = np.cumsum([row, *run.rows])
        for batch in _batches(file, parquet, run, names):
            yield _rows(batch, row, run.first, starts, columns, labels)
            row += batch.num_rows
        if row != starts[-1]:
            raise InputError(
                f"{file.path}, {place(run.first, run.stop)}: has {row - starts[0]} rows, expected "
                f"{run.total_rows} from the footer. The file is damaged; download it again."
            )


@dataclass(slots=True)
class _Run:
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


def _runs(footer: pq.FileMetaData, block: Block) -> list[_Run]:
    """The row groups of a block, in runs. A record batch costs some milliseconds, however small."""
    runs: list[_Run] = []
    for group in range(block.first_group, block.stop_group):
        row_group = footer.row_group(group)
        rows = row_group.num_rows
        # The size of all columns is more than that of the text, and so is the block's.
        size = min(row_group.total_byte_size, block.bytes)
        last = runs[-1] if runs else None
        if last is None or last.total_rows + rows > BATCH_ROWS or last.bytes + size > BATCH_BYTES:
            runs.append(_Run(group, [rows], rows, size))
        else:
            last.rows.append(rows)
            last.total_rows += rows
            last.bytes += size
    return runs


def _batches(
    file: SourceFile, parquet: pq.ParquetFile, run: _Run, names: list[str]
) -> Iterator[pa.RecordBatch]:
    groups = range(run.first, run.stop)
    try:
        yield from parquet.iter_batches(run.batch_rows, groups, names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        for group in groups if len(groups) > 1 else ():
            rows = run.rows[group - run.first]
            for _ in _batches(file, parquet, _Run(group, [rows], rows, run.bytes), names):
                pass
        raise cannot_decode(file, run.first, run.stop, error) from error


def _check_columns(file: SourceFile, schema: pa.Schema, columns: Columns) -> None:
    wanted = [("--text_column", columns.text)]
    if columns.id_required:
        wanted.append(("--id_column", columns.id))
    if columns.split is not None:
        wanted.append(("--split_key", columns.split))
    for flag, name in wanted:
        if schema.names.count(name) != 1:
            found = "several columns" if name in schema.names else "no column"
            raise InputError(
                f"{file.path} has {found} {name!r}; its columns are {', '.join(schema.names)}. "
                f"Choose one with {flag}."
            )
    text_type = schema.field(columns.text).type
    if not _is_text(text_type):
        raise InputError(
            f"{file.path}: column {columns.text!r} has type {text_type}, expected a string type. "
            "Choose the text column with --text_column."
        )
    if columns.id_required and not _has_text_form(schema.field(columns.id).type):
        raise InputError(
            f"{file.path}: column {columns.id!r} has type {schema.field(columns.id).type}, "
            "expected strings or numbers. Choose the id column with --id_column."
        )
    if columns.split is not None and not _has_text_form(schema.field(columns.split).type):
        raise InputError(
            f"{file.path}: column {columns.split!r} has type {schema.field(columns.split).type}, "
            "expected strings or numbers. Choose another split key with --split_key."
        )


def _names(file: SourceFile, parquet: pq.ParquetFile, columns: Columns) -> list[str]:
    """The columns to read: those that the user named, and the others that can be read."""
    named = {columns.text}
    if columns.split is not None:
        named.add(columns.split)
    if columns.id_required:
        named.add(columns.id)
    kinds = {columns.id: _has_text_form} | dict.fromkeys(LABEL_COLUMNS, _is_text)
    others = {
        name
        for name, is_kind in kinds.items()
        if _has(parquet.schema_arrow, name, is_kind)
        and name not in named
        and not is_encrypted(file, parquet.metadata, name)
    }
    return sorted(named | others)


def _has(schema: pa.Schema, name: str, is_kind: Callable[[pa.DataType], bool]) -> bool:
    return schema.names.count(name) == 1 and is_kind(schema.field(name).type)


def _has_text_form(kind: pa.DataType) -> bool:
    """Whether values of a type can be cast to strings. Lists and structs cannot."""
    try:
        _as_text(pa.array([], kind), pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_view = pa.types.is_string_view(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view)


def _rows(
    batch: pa.RecordBatch,
    first_row: int,
    first_group: int,
    starts: npt.NDArray[np.int64],
    columns: Columns,
    labels: list[str],
) -> Rows:
    """The rows of a record batch.

    first_row: number of its first row. first_group: number of the first row group of its run.
    starts: numbers of the first rows of the run's row groups.
    """
    numbers = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
    texts = _as_text(batch.column(columns.text), pa.large_string())
    ids = pa.nulls(batch.num_rows, pa.string())
    if columns.id in batch.schema.names:
        ids = _as_text(batch.column(columns.id), pa.string())
    # A column that the user did not name must not reject a row.
    named = {columns.text: _invalid(texts)}
    if columns.id_required:
        named[columns.id] = _invalid(ids)
    else:
        ids = _without_invalid(ids)
    split = pa.nulls(batch.num_rows, pa.string())
    if columns.split is not None:
        split = _as_text(batch.column(columns.split), pa.string())
        named[columns.split] = _invalid(split)
    values = {name: _without_invalid(_as_text(batch.column(name), pa.string())) for name in labels}
    rows = Rows(numbers, texts, ids, split, values)
    reasons: dict[int, str] = {}
    for name, invalid in named.items():
        for index in invalid:
            reasons.setdefault(index, f"its {name!r} is not valid UTF-8")
    if not reasons:
        return rows
    keep = np.ones(len(numbers), dtype=np.bool_)
    keep[list(reasons)] = False
    bad = []
    for index, reason in sorted(reasons.items()):
        row = first_row + index
        group = first_group + int(np.searchsorted(starts, row, side="right")) - 1
        bad.append(BadRow(row, f"{place(group, group + 1)}, ", reason))
    return rows.filter(keep, bad)


def _as_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))


def _invalid(strings: pa.Array) -> list[int]:
    """The indices of strings that are not valid UTF-8."""
    if _is_valid(strings):
        return []
    return [index for index in range(len(strings)) if not _is_valid(strings.slice(index, 1))]


def _without_invalid(strings: pa.Array) -> pa.Array:
    """The strings with null in place of those that are not valid UTF-8."""
    invalid = _invalid(strings)
    if not invalid:
        return strings
    keep = np.ones(len(strings), dtype=np.bool_)
    keep[invalid] = False
    return pc.if_else(pa.array(keep), strings, pa.scalar(None, strings.type))


def _is_valid(texts: pa.Array) -> bool:
    """Whether all strings are valid UTF-8. Parquet writers need not check, and pyarrow does not."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
