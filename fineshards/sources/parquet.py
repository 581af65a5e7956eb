"""Parquet: blocks from the footer, rows from row groups.

Only the needed columns are read, through a small buffer and in record batches. Memory does not
grow with the file, the row group or the other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineshards.errors import InputError
from fineshards.shards.job import Columns
from fineshards.shards.records import BadRow, Block, SourceFile
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, LABEL_COLUMNS, Rows
from fineshards.storage.parquet import open_parquet

# Without a buffer, pyarrow reads a whole column chunk at once, which may be all text of the file.
# For a remote file each fill is a request, so the buffer is not small either.
_READ_BUFFER = 8 << 20


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file, from its footer: row groups up to `block_bytes` of text.

    A block ends with the row group that reaches `block_bytes`.
    A file without rows has one empty block, so that every file is reported. Raises InputError for
    a file that is not parquet, lacks a column or has a column of the wrong type.
    """
    parquet = _open(file, opened)
    _check_columns(file, parquet.schema_arrow, columns)
    metadata = parquet.metadata
    text_index = _leaf_index(metadata, columns.text)
    runs: list[list[int]] = []  # first group, stop group, first row, bytes
    row = 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).column(text_index).total_uncompressed_size
        if not runs or runs[-1][3] >= block_bytes:
            runs.append([group, group, row, 0])
        runs[-1][1] = group + 1
        runs[-1][3] += size
        row += metadata.row_group(group).num_rows
    runs = runs or [[0, 0, 0, 0]]
    return [
        Block(file.index, index, len(runs), first, stop, first_row, size)
        for index, (first, stop, first_row, size) in enumerate(runs)
    ]


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError for a damaged row group."""
    parquet = _open(file, opened)
    _check_columns(file, parquet.schema_arrow, columns)
    schema = parquet.schema_arrow
    labels = [name for name in LABEL_COLUMNS if _has(schema, name, _is_text)]
    names = {columns.text, *labels}
    if _has(schema, columns.id, _has_text_form):
        names.add(columns.id)
    if columns.split is not None:
        names.add(columns.split)
    row = block.first_row
    for group in range(block.first_group, block.stop_group):
        expected = parquet.metadata.row_group(group).num_rows
        group_first_row = row
        batches = parquet.iter_batches(
            batch_size=_batch_rows(parquet.metadata, group, columns.text),
            row_groups=[group],
            columns=sorted(names),
            use_threads=False,
        )
        for batch in _guard(file, group, batches):
            yield _rows(batch, row, f"row group {group}, ", columns, labels)
            row += batch.num_rows
        if row - group_first_row != expected:
            raise InputError(
                f"{file.path}, row group {group}: has {row - group_first_row} rows, expected "
                f"{expected} from the footer. The file is damaged; download it again."
            )


def _open(file: SourceFile, opened: BinaryIO) -> pq.ParquetFile:
    try:
        return open_parquet(opened, _READ_BUFFER)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file.path} ({file.size} bytes) is not a readable parquet file: {_reason(error)}. "
            "It may be truncated or in another format; download it again, or exclude it."
        ) from error


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


def _leaf_index(metadata: pq.FileMetaData, column: str) -> int:
    paths: list[str] = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    return paths.index(column)


def _batch_rows(metadata: pq.FileMetaData, group: int, column: str) -> int:
    """The number of rows that have about BATCH_BYTES of text, by the row group's average."""
    row_group = metadata.row_group(group)
    size = row_group.column(_leaf_index(metadata, column)).total_uncompressed_size
    rows: int = BATCH_BYTES * row_group.num_rows // max(size, 1)
    return max(1, min(BATCH_ROWS, rows))


def _guard(file: SourceFile, group: int, batches: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file.path}, row group {group}: cannot be decoded: {_reason(error)}. "
            "The file is damaged; download it again."
        ) from error


def _rows(
    batch: pa.RecordBatch, first_row: int, place: str, columns: Columns, labels: list[str]
) -> Rows:
    numbers = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
    texts = _as_text(batch.column(columns.text), pa.large_string())
    ids = pa.nulls(batch.num_rows, pa.string())
    if columns.id in batch.schema.names:
        ids = _as_text(batch.column(columns.id), pa.string())
    split = pa.nulls(batch.num_rows, pa.string())
    if columns.split is not None:
        split = _as_text(batch.column(columns.split), pa.string())
    values = {name: _as_text(batch.column(name), pa.string()) for name in labels}
    rows = Rows(numbers, texts, ids, split, values)
    reasons: dict[int, str] = {}
    read = [(columns.text, texts), (columns.id, ids), (columns.split, split), *values.items()]
    for name, strings in read:
        for index in _invalid(strings):
            reasons.setdefault(index, f"its {name!r} is not valid UTF-8")
    if not reasons:
        return rows
    keep = np.ones(len(numbers), dtype=np.bool_)
    keep[list(reasons)] = False
    return rows.filter(
        keep,
        [BadRow(first_row + index, place, reason) for index, reason in sorted(reasons.items())],
    )


def _as_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))


def _invalid(strings: pa.Array) -> list[int]:
    """The indices of strings that are not valid UTF-8."""
    if _is_valid(strings):
        return []
    return [index for index in range(len(strings)) if not _is_valid(strings.slice(index, 1))]


def _is_valid(texts: pa.Array) -> bool:
    """Whether all strings are valid UTF-8. Parquet writers need not check, and pyarrow does not."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
