"""JSON Lines, plain or compressed: one object per line, one block per file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import orjson
import pyarrow as pa

from fineshards.chat.conversation import BadConversation
from fineshards.errors import InputError
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import conversation_text, named_columns, text_columns
from fineshards.sources.compression import check_beginning, explained, open_text, read_lines
from fineshards.sources.formats.format import Format, gathered, whole
from fineshards.sources.rows import LABEL_COLUMNS, RowBatch

_KINDS = {str: "a string", bool: "a boolean", dict: "an object", list: "an array"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# JSON to Python alone.
_CONSTANT = re.compile("NaN|Infinity")
# Finds the values of an object as they are written.
_WRITTEN = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonLines(Format):
    """Lines of JSON. C4 and Dolma name them `.json.gz`."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    typed = False

    def blocks(
        self, file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int
    ) -> list[Block]:
        """See Format. Only the first object must have the columns, except those of a recipe.

        A first line that is not an object is left to `read`, which reports it as a bad row.
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
            for name, advice in named_columns(columns, record):
                if name not in record:
                    raise InputError(
                        f"{file.path}, line {line_number}: has no field {name!r}; its fields are "
                        f"{', '.join(record)}. {advice}"
                    )
            break
        return whole(file)

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format. Rows are numbered from 0; blank lines are skipped."""
        names = _names(columns)
        kinds = [pa.large_string() if name in columns.of_text else pa.string() for name in names]
        schema = pa.schema([*zip(names, kinds, strict=True)])
        for name in columns.others:
            schema = schema.append(pa.field(name, pa.string()))
        yield from gathered(_rows(file, opened, columns, names), schema)


def _names(columns: Columns) -> list[str]:
    """The columns that are read as strings."""
    texts = (columns.text,) if columns.conversations else columns.of_text
    split = [columns.split] if columns.split else []
    return [*dict.fromkeys([*texts, columns.id, *split, *LABEL_COLUMNS])]


def _rows(
    file: SourceFile, opened: BinaryIO, columns: Columns, names: list[str]
) -> Iterator[BadRow | tuple[int, list[str | None], int]]:
    for row, (line_number, line) in enumerate(_lines(file, opened)):
        try:
            yield row, _values(line, columns, names), len(line)
        except (BadConversation, ValueError) as error:
            yield BadRow(row, f"line {line_number}, ", str(error))


def _values(line: bytes, columns: Columns, names: list[str]) -> list[str | None]:
    """The strings of a row, and the JSON texts of the other columns that are asked for.

    Raises ValueError or BadConversation with the reason if it cannot be a row.
    """
    record = _parse(line)
    texts = text_columns(columns, record)
    if record.keys().isdisjoint(texts):
        # Not the names of the others, which may be text: reasons stay in the dataset.
        fields = "1 field" if len(record) == 1 else f"{len(record):,} fields"
        expected = " or ".join(map(repr, texts))
        raise ValueError(f"has no field {expected} (an object of {fields})")
    others = [_json_text(record.get(name), name, line) for name in columns.others]
    if columns.conversations:
        texts = ()
        record[columns.text] = conversation_text(record, columns)
    values: list[str | None] = []
    for name in names:
        value = record.get(name)
        if value is not None and not isinstance(value, str):
            if name in texts and columns.template is None:
                raise ValueError(f"its {name!r} is {_kind(value)}, expected a string")
            if isinstance(value, dict | list):
                if name in texts:
                    expected = "a string, a number or a boolean"
                    raise ValueError(f"its {name!r} is {_kind(value)}, expected {expected}")
                if name == columns.id and columns.id_required:
                    expected = "a string or a number"
                    raise ValueError(f"its {name!r} is {_kind(value)}, expected {expected}")
                value = None
            else:
                value = _written(line, name) if _is_inexact(value) else json.dumps(value)
        values.append(value)
    return values + others


def _parse(line: bytes) -> dict[str, Any]:
    """The object of a line; raises ValueError with the reason if the line is not an object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if constant := _CONSTANT.match(error.doc, error.pos):
            raise ValueError(f"holds {constant[0]}, which JSON does not have") from None
        raise ValueError(f"is not valid JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {_kind(record)}, expected an object")
    return record


def _kind(value: object) -> str:
    """What JSON calls a value, with its article."""
    return "null" if value is None else _KINDS.get(type(value), "a number")


def _is_inexact(value: object) -> bool:
    """Whether a value is a float that may have been an integer of more than 64 bits."""
    return isinstance(value, float) and abs(value) >= 1 << 63


def _written(line: bytes, name: str) -> str:
    """A value of an object as it is written in its line, which is valid JSON."""
    try:
        return bytes(_WRITTEN.decode(line)[name]).decode()
    except RecursionError:
        raise ValueError("is nested too deep to read its values exactly") from None


def _json_text(value: object, name: str, line: bytes) -> str | None:
    """A value of an object as JSON; null for null."""
    if value is None:
        return None
    if isinstance(value, dict | list) or _is_inexact(value):
        return _written(line, name)
    return orjson.dumps(value).decode()


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
