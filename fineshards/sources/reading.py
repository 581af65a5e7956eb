"""Finds and reads the blocks of a file of any format, and detects files that change meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.shards.record import replace
from fineshards.sources.columns import check_columns, rows_of, types_read
from fineshards.sources.files import check_unchanged, explain_failures, open_file
from fineshards.sources.formats.table import FORMATS
from fineshards.sources.rows import Rows


def discover_blocks(file: SourceFile, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file, from its metadata; raises InputError if it cannot be used."""
    check_unchanged(file)
    kind = FORMATS[file.format]
    with explain_failures(file), open_file(file, kind.discovery_read_ahead) as opened:
        blocks = kind.blocks(file, opened, columns, block_bytes)
    if file.stop_row is None:
        return blocks
    kept = [block for block in blocks if block.first_row < file.stop_row]
    return [replace(block, blocks=len(kept)) for block in kept]


def column_types(file: SourceFile, columns: Columns) -> pa.Schema:
    """The types of the columns of `Columns.others`, from the head or the footer of a file.

    Raises InputError if the file cannot be used, or lacks a column. Lines of JSON may lack any.
    """
    kind = FORMATS[file.format]
    if not kind.typed:
        return pa.schema(dict.fromkeys(columns.others, pa.string()))
    check_unchanged(file)
    with explain_failures(file), open_file(file, kind.discovery_read_ahead) as opened:
        schema = kind.schema(file, opened)
    check_columns(file, schema, columns)
    return types_read(schema, columns.others)


def read_block(file: SourceFile, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError if the file is damaged or changed."""
    check_unchanged(file)
    with explain_failures(file), open_file(file) as opened:
        yield from _read(file, opened, columns, block)
    check_unchanged(file)


def _read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block, up to the row that the file is read to."""
    kind = FORMATS[file.format]
    place = partial(kind.place, file, opened)
    for batch in kind.read(file, opened, block, columns):
        rows = rows_of(batch, columns, kind.typed, place)
        if file.stop_row is None:
            yield rows
            continue
        yield rows.before(file.stop_row)
        if any(int(row) >= file.stop_row for row in rows.numbers[-1:]):
            return


def cut(file: SourceFile, columns: Columns, block: Block, limit: int) -> tuple[int | None, float]:
    """The row before which a block has about `limit` bytes of text, and the share of it before.

    None and 1 if it has less.
    """
    text = rows = 0
    with explain_failures(file), open_file(file) as opened:
        for batch in _read(file, opened, columns, block):
            rows += len(batch.numbers) + len(batch.bad)
            text += batch.text_bytes
            if text >= limit:
                stop = int(max([*batch.numbers[-1:], *(bad.row for bad in batch.bad)])) + 1
                # Of a whole file by the position in it. Some readers close a file at its end.
                share = 1.0 if opened.closed else opened.tell() / max(block.bytes, 1)
                all_rows = FORMATS[file.format].rows_in(file, opened, block)
                return stop, share if all_rows is None else rows / max(all_rows, 1)
    return None, 1.0
