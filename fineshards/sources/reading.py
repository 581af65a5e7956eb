"""Reads blocks of a file of any format, or some of its rows, and notices a file that changes."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns, Settings
from fineshards.shards.record import replace
from fineshards.sources.columns import (
    check_columns,
    folder_columns,
    named_fields,
    rows_of,
    without_view,
)
from fineshards.sources.files import check_unchanged, explain_failures, open_file, some
from fineshards.sources.formats.format import FORMATS, Format, without_query
from fineshards.sources.rows import LABEL_COLUMNS, Rows

# Files, spread over the input, in which fields are looked for before a build.
_FIRST_FILES = 10


def _format(file: SourceFile) -> Format:
    # Of own formats it is no package: `check_versions` compares those of WARC.
    return FORMATS.recorded(file.format, None if file.format in FORMATS.own else file.extraction)


def discover_blocks(file: SourceFile, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file, from its metadata; raises InputError if it cannot be used."""
    check_unchanged(file)
    kind = _format(file)
    with explain_failures(file), open_file(file, kind.discovery_read_ahead) as opened:
        blocks = kind.blocks(file, opened, _by_folder(file, columns)[0], block_bytes)
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
        in_file, _ = _by_folder(file, columns)
        schema = check_columns(file, kind.schema(file, opened), in_file)
    of_file = {name: schema.field(name).type for name in in_file.others}
    kinds = dict.fromkeys(columns.others, pa.string()) | of_file
    return pa.schema({name: without_view(pa.nulls(0, kind)).type for name, kind in kinds.items()})


def _by_folder(file: SourceFile, columns: Columns) -> tuple[Columns, dict[str, str | None]]:
    """Parts the columns that are asked for into those to read in a file, and those of its folders.

    A folder such as `lang=de/` gives all rows a value, for steps, the split key, labels and
    exports, also where the file has a column of that name. Where the root is decides nothing.
    """
    within = without_query(file.path).removeprefix(file.root)
    values = folder_columns(within.split("/")[:-1], columns)
    others = tuple(name for name in columns.others if name not in values)
    split = None if columns.split in values else columns.split
    return replace(columns, others=others, split=split), values


def _with_folders(rows: Rows, columns: Columns, values: Mapping[str, str | None]) -> Rows:
    """Rows with the columns of folders. columns: all that are asked for."""
    count = len(rows.numbers)
    given = {name: pa.array([value] * count, pa.string()) for name, value in values.items()}
    others = rows.others | given
    if rows.others_are_json:
        texts = {name: json.dumps(value) for name, value in values.items() if value is not None}
        others |= {name: pa.array([text] * count, pa.string()) for name, text in texts.items()}
    return dataclasses.replace(
        rows,
        split=given.get(columns.split or "", rows.split),
        labels=rows.labels | {name: given[name] for name in LABEL_COLUMNS if name in given},
        others={name: others[name] for name in columns.others},
    )


def check_fields(files: Sequence[SourceFile], columns: Columns) -> None:
    """Raises InputError for a column of `Columns.others` that no row at the beginning of files has.

    Files with types are checked by `discover_blocks`; one that cannot be read is reported later.
    """
    files = files[:: -(-len(files) // _FIRST_FILES)]
    missing, fields = {*columns.others}, set[str]()
    for file in files:
        kind = _format(file)
        missing -= _by_folder(file, columns)[1].keys()
        if kind.typed or not missing:
            return
        with suppress(InputError), explain_failures(file), open_file(file, 1 << 20) as opened:
            for record in kind.objects(file, opened):
                fields |= record.keys()
                missing -= named_fields(record, missing).keys()
                if not missing:
                    return
    if fields:
        raise InputError(
            f"the first rows of {some([file.path for file in files])} have no field "
            f"{', '.join(map(repr, sorted(missing)))}; their fields are "
            f"{', '.join(sorted(fields))}. Correct the name; if later rows have it, give first a "
            "file that begins with it."
        )


def compared_with(first: SourceFile, file: SourceFile) -> str:
    """The columns of the first file that another one lacks, as a sentence; empty if unknown."""
    missing = list[str]()
    with suppress(InputError):
        columns = _columns_of(file)
        missing = [column for column in _columns_of(first) if column not in columns]
    return f" The first file, {first.path}, has {some(missing)}." if missing else ""


def _columns_of(file: SourceFile) -> list[str]:
    """The columns of a file with their types; of JSON Lines, the names of an object's fields."""
    kind = _format(file)
    with explain_failures(file), open_file(file, kind.discovery_read_ahead) as opened:
        if not kind.typed:
            return [*next(kind.objects(file, opened), {})]
        return [f"{field.name} {field.type}" for field in kind.schema(file, opened)]


def read_block(file: SourceFile, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block in order; raises InputError if the file is damaged or changed."""
    check_unchanged(file)
    with explain_failures(file), open_file(file) as opened:
        yield from _read(file, opened, columns, block)
    check_unchanged(file)


def _read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a block, up to the row that the file is read to."""
    kind = _format(file)
    in_file, folders = _by_folder(file, columns)
    for batch in kind.read(file, opened, block, in_file):
        rows = rows_of(batch, in_file, kind.typed, kind.labels)
        rows = _with_folders(rows, columns, folders) if folders else rows
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
