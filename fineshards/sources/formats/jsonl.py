"""JSON lines, plain or compressed: one object per line, one block per file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa

from fineshards.chat.conversation import BadConversation
from fineshards.errors import InputError
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.compression import check_beginning, explained, open_text, read_lines
from fineshards.sources.formats.conversations import choose_column, conversation_text, text_columns
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, LABEL_COLUMNS, Rows, joined_texts

_KINDS = {str: "a string", bool: "a boolean", dict: "an object", list: "an array"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the single block of a file; raises InputError if its first object lacks a column.

    A first line that is not an object is left to `read`, which reports it as a bad row. Lines can
    only be found by reading from the start, so the file is not split and `block_bytes` has no
    effect.
    """
    for line_number, line in _lines(file, opened):
        try:
            record = _parse(line)
        except ValueError:
            if file.path.endswith(f"/{EXPORT_NAME}") and line.strip() == b"{":
                raise InputError(
                    f"{file.path} is the record of an export. Give the folder data beside it, "
                    "which has the texts."
                ) from None
            break
        for advice, name in _named(columns, record):
            if name not in record:
                raise InputError(
                    f"{file.path}, line {line_number}: has no field {name!r}; its fields are "
                    f"{', '.join(record)}. {advice}"
                )
        break
    return [Block(file.index, 0, 1, 0, 0, 0, file.size)]


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a file in order, numbered from 0. Blank lines are not rows.

    Raises InputError for a file that is truncated or not compressed as its name says.
    """
    batch = _LineBatch(columns)
    row = block.first_row
    for line_number, line in _lines(file, opened):
        try:
            batch.add(row, *_parse_row(line, columns), len(line))
        except (BadConversation, ValueError) as error:
            batch.bad.append(BadRow(row, f"line {line_number}, ", str(error)))
        row += 1
        if batch.is_full():
            yield batch.rows()
            batch = _LineBatch(columns)
    yield batch.rows()


class _LineBatch:
    """Rows collected until there are enough for a record batch."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._numbers: list[int] = []
        self._records: list[dict[str, Any]] = []
        self._others: list[list[str | None]] = []
        self._bytes = 0
        self.bad: list[BadRow] = []

    def add(self, row: int, record: dict[str, Any], others: list[str | None], size: int) -> None:
        self._numbers.append(row)
        self._records.append(record)
        self._others.append(others)
        self._bytes += size

    def is_full(self) -> bool:
        return self._bytes >= BATCH_BYTES or len(self._numbers) >= BATCH_ROWS

    def rows(self) -> Rows:
        return Rows(
            numbers=np.array(self._numbers, dtype=np.int64),
            texts=self._texts(),
            ids=self._column(self._columns.id, pa.string()),
            split=self._column(self._columns.split, pa.string()),
            labels={name: self._column(name, pa.string()) for name in LABEL_COLUMNS},
            bad=self.bad,
            others={
                name: pa.array([values[index] for values in self._others], pa.string())
                for index, name in enumerate(self._columns.others)
            },
            others_are_json=True,
        )

    def _texts(self) -> pa.Array:
        if self._columns.conversations:
            found = [record[self._columns.text] for record in self._records]
            return pa.array(found, pa.large_string())
        parts = {
            name: pa.array(
                [_json_form(each.get(name)) for each in self._records], pa.large_string()
            )
            for name in self._columns.of_text
        }
        return joined_texts(self._columns, parts)

    def _column(self, name: str | None, kind: pa.DataType) -> pa.Array:
        if name is None:
            return pa.nulls(len(self._records), kind)
        return pa.array([_as_text(record.get(name)) for record in self._records], kind)


def _parse_row(line: bytes, columns: Columns) -> tuple[dict[str, Any], list[str | None]]:
    """The object of a line, and the JSON texts of the other columns that are asked for.

    Raises ValueError with the reason if it cannot be a row.
    """
    record = _parse(line)
    texts = text_columns(columns, record)
    if record.keys().isdisjoint(texts):
        # Not the names of the others, which may be text: reasons stay in the dataset.
        fields = "1 field" if len(record) == 1 else f"{len(record):,} fields"
        names = " or ".join(map(repr, texts))
        raise ValueError(f"has no field {names} (an object of {fields})")
    if columns.conversations:
        conversation, texts = conversation_text(record, columns), ()
    for name in texts:
        value = record.get(name)
        if value is None or isinstance(value, str):
            continue
        if columns.template is None:
            raise ValueError(f"its {name!r} is {_kind(value)}, expected a string")
        if isinstance(value, dict | list):
            expected = "a string, a number or a boolean"
            raise ValueError(f"its {name!r} is {_kind(value)}, expected {expected}")
    if columns.id_required and isinstance(id_ := record.get(columns.id), dict | list):
        raise ValueError(f"its {columns.id!r} is {_kind(id_)}, expected a string or a number")
    others = [_json_text(record.get(name), name, line) for name in columns.others]
    # Integers beyond 64 bits have become floats, which would make different ids equal.
    if columns.conversations:
        record[columns.text] = conversation
    as_text = [*texts, columns.id, *LABEL_COLUMNS]
    as_text += [columns.split] if columns.split else []
    inexact = [name for name in as_text if _is_inexact(record.get(name))]
    if inexact:
        exact = _parse_exactly(line, parse_int=str, parse_float=str)
        record |= {name: exact[name] for name in inexact}
    return record, others


def _json_text(value: object, name: str, line: bytes) -> str | None:
    """A value of an object as JSON; null for null."""
    if value is None:
        return None
    try:
        if not _holds_inexact(value):
            return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested deeper than it writes
        pass
    value = _parse_exactly(line)[name]
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _parse_exactly(line: bytes, **numbers: Any) -> dict[str, Any]:
    """The object of a line, by a slower parser that keeps large integers."""
    try:
        record: dict[str, Any] = json.loads(line, **numbers)
    except RecursionError:
        raise ValueError("is nested too deep to read its values exactly") from None
    return record


def _parse(line: bytes) -> dict[str, Any]:
    """The object of a line; raises ValueError with the reason if the line is not an object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if constant := _constant(line):
            raise ValueError(f"holds {constant}, which JSON does not have") from None
        raise ValueError(f"is not valid JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {_kind(record)}, expected an object")
    return record


def _constant(line: bytes) -> str | None:
    """The constant, such as NaN, for which a line is JSON to Python alone."""
    found: list[str] = []
    try:
        json.loads(line, parse_constant=found.append)
    except (RecursionError, ValueError):
        return None
    return found[0] if found else None


def _is_inexact(value: object) -> bool:
    return isinstance(value, float) and abs(value) >= 1 << 63


def _holds_inexact(value: object) -> bool:
    """Whether a value, or one inside it, is a float that may have been an integer."""
    within = [value]
    while within:
        value = within.pop()
        if _is_inexact(value):
            return True
        if isinstance(value, dict):
            within += value.values()
        elif isinstance(value, list):
            within += value
    return False


def _as_text(value: object) -> str | None:
    """A string as it is, a number or a boolean as Python writes it; null for the rest."""
    if value is None or isinstance(value, str):
        return value
    return None if isinstance(value, dict | list) else str(value)


def _json_form(value: object) -> str | None:
    """A string as it is, a number or a boolean as JSON writes it; null for null."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _kind(value: object) -> str:
    """What JSON calls a value, with its article."""
    if value is None:
        return "null"
    for kind, name in _KINDS.items():
        if isinstance(value, kind):
            return name
    return "a number"


def _named(columns: Columns, record: dict[str, Any]) -> list[tuple[str, str]]:
    """The fields that the first object must have, with what to do if one is missing."""
    advice = choose_column(columns, record)
    named = [(advice, name) for name in text_columns(columns, record)]
    if columns.id_required:
        named.append(("Choose one with --id_column.", columns.id))
    if columns.split is not None:
        named.append(("Choose one with --split_key.", columns.split))
    return named


def _lines(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields line numbers, from 1, and lines. Skips blank lines."""
    line_number = 0
    with explained(file, lambda: f"line {line_number}"):
        for line_number, line in enumerate(read_lines(file, open_text(file, opened)), start=1):
            content = line
            if line_number == 1:
                check_beginning(file, line[:4])
                content = line.removeprefix(_BYTE_ORDER_MARK)
            if content.strip():
                yield line_number, content
