"""Plain text in UTF-8, plain or compressed: one document per file, whose id is the file's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.compression import explained, open_text, read_text, wide_encoding
from fineshards.sources.files import file_name
from fineshards.sources.formats.record_batches import check_columns, rows_of
from fineshards.sources.rows import Rows

_SCHEMA = pa.schema([("text", pa.large_string()), ("id", pa.string())])
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the single block of a file; raises InputError if another column is asked for."""
    check_columns(file, _SCHEMA, columns)
    open_text(file, opened)
    return [Block(file.index, 0, 1, 0, 0, 0, file.size)]


def schema(file: SourceFile, opened: BinaryIO) -> pa.Schema:
    """The types of all columns, which every file has."""
    return _SCHEMA


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the one row of a file; it is a bad row if it is not valid UTF-8."""
    check_columns(file, _SCHEMA, columns)
    with explained(file, lambda: "the beginning"):
        content = read_text(file, open_text(file, opened))
    text = pa.array([content.removeprefix(_BYTE_ORDER_MARK)], pa.large_binary())
    # Without a check: what is not UTF-8 is a bad row.
    text = pa.Array.from_buffers(pa.large_string(), 1, text.buffers())
    batch = pa.record_batch([text, pa.array([file_name(file.path)])], schema=_SCHEMA)
    rows = rows_of(batch, np.zeros(1, np.int64), columns)
    if found := wide_encoding(content[:4]):
        reason = f"its text is in {found}, expected UTF-8"
        rows = replace(rows, bad=[replace(bad, reason=reason) for bad in rows.bad])
    yield rows
