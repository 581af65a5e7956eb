"""Reads blocks of a file of any format, or some of its rows, and notices a file that changes."""

from collections.abc import Collection, Iterator
from itertools import chain
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns, Settings
from fineshards.shards.record import replace
from fineshards.sources.columns import check_columns, rows_of, without_view
from fineshards.sources.files import check_unchanged, explain_failures, open_file
from fineshards.sources.formats.format import FORMATS, Format
from fineshards.sources.rows import Rows


def _format(file: SourceFile) -> Format:
    # Of own formats it is no package: `check_versions` compares those of WARC.
    return FORMATS.recorded(file.format, None if file.format in FORMATS.own else file.extraction)


def discover_blocks(file: SourceFile, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file, from its metadata; raises InputError if it cannot be used."""
    check_unchanged(file)
    kind = _format(file)
    with explain_failures(file), open_file(file, kind.discovery_read_ahead) as opened:
        blocks = kind.blocks(file, opened, columns, block_bytes)
    if file.stop_row is None:
        return blocks
    needed = [block for block in blocks if block.first_row < file.stop_row]
    return [replace(block, blocks=len(needed)) for block in needed]


def column_types(file: SourceFile, columns: Columns) -> pa.Schema:
    """The types of the columns of `Columns.others`, from the head or the footer of a file.

    Raises InputError if the file cannot be used, or lacks a column. Lines of JSON may lack any.
    """
    kind = _format(file)
    if not kind.typed:
        return pa.schema(dict.fromkeys(columns.others, pa.string()))
    check_unchanged(file)
    with explain_failures(file), open_file(file, kind.discovery_read_ahead) as opened:
        schema = check_columns(file, kind.schema(file, opened), columns)
    arrays = {name: pa.nulls(0, schema.field(name).type) for name in columns.others}
    return pa.schema([(name, without_view(values).type) for name, values in arrays.items()])


def read_block(file: SourceFile, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError if the file is damaged or changed."""
    check_unchanged(file)
    with explain_failures(file), open_file(file) as opened:
        yield from _read(file, opened, columns, block)
    check_unchanged(file)


def _read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block, up to the row that the file is read to."""
    kind = _format(file)
    for batch in kind.read(file, opened, block, columns):
        rows = rows_of(batch, columns, kind.typed)
        if file.stop_row is None:
            yield rows
            continue
        bad = [row for row in rows.bad if row.row < file.stop_row]
        yield rows.filter(rows.numbers < file.stop_row, bad)
        if any(int(row) >= file.stop_row for row in rows.numbers[-1:]):
            return


def cut(file: SourceFile, columns: Columns, block: Block, limit: int) -> tuple[int | None, float]:
    """The row before which a block has about `limit` bytes of text, and the share of it before.

    None and 1 if it has less.
    """
    text = 0
    with explain_failures(file), open_file(file) as opened:
        for rows in _read(file, opened, columns, block):
            text += rows.text_bytes
            if text >= limit:
                stop = int(max([*rows.numbers[-1:], *(bad.row for bad in rows.bad)])) + 1
                # Of a whole file by the position in it. Some readers close a file at its end.
                read = text if block.stop_group else file.size if opened.closed else opened.tell()
                return stop, min(1.0, read / max(block.bytes, 1))
    return None, 1.0


class RowReader:
    """Reads some documents of a source file, and from there on later ones.

    So a file whose blocks cannot be entered is read once, if each call asks for later rows than
    the one before.

    Raises InputError if the file has changed, or cannot be read.
    """

    def __init__(self, file: SourceFile, settings: Settings) -> None:
        self.file = file
        self._columns = settings.columns
        self._blocks = discover_blocks(file, self._columns, settings.block_bytes)
        self._starts = [block.first_row for block in self._blocks]
        # The block that is read, what is left of it, and the record batch before that.
        self._number = -1
        self._left: Iterator[Rows] = iter(())
        self._last: Rows | None = None

    def read(self, wanted: Collection[int]) -> Iterator[Rows]:
        """Those of some rows that are documents, in order.

        Reads only the blocks that they are in, and none further than the last of them.
        """
        rows = np.array(sorted(wanted), np.int64)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = rows[numbers == number]
            last = self._last
            if number != self._number or last is None or last.numbers[0] > here[0]:
                self._number, last = number, None
                self._left = read_block(self.file, self._columns, self._blocks[number])
            for rows_read in chain([last] if last else [], self._left):
                self._last = rows_read if len(rows_read.numbers) else None
                documents = rows_read.with_text()
                there = np.isin(documents.numbers, here)
                if there.any():
                    yield documents.filter(there, [])
                if len(rows_read.numbers) and rows_read.numbers[-1] >= here[-1]:
                    break
