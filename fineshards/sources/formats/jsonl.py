"""JSON Lines, plain or compressed: one object per line, one block per file."""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import orjson
import pyarrow as pa

from fineshards.chat.conversation import BadConversation
from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import (
    asked_for,
    conversation_text,
    named_columns,
    named_fields,
    text_columns,
)
from fineshards.sources.compression import read_lines
from fineshards.sources.formats.format import Format, gathered, whole
from fineshards.sources.rows import LABEL_COLUMNS, RowBatch

_KINDS = {str: "a string", bool: "a boolean", dict: "an object", list: "an array"}
# JSON to Python alone.
_CONSTANT = re.compile("NaN|Infinity")
# Finds the values of an object as they are written.
_WRITTEN = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonLines(Format):
    """Lines of JSON. C4 and Dolma name them `.json.gz`."""

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
                record = named_fields(_parse(line), asked_for(columns))
            except ValueError:
                break
            for named in named_columns(columns, record):
                if named.name not in record:
                    raise InputError(
                        f"{file.path}, line {line_number}: has no field {named.name!r}; its fields "
                        f"are {', '.join(record)}. {named.advice}"
                    )
            break
        return whole(file)

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format. Rows are numbered from 0; blank lines are skipped."""
        texts = (columns.text,) if columns.conversations else columns.of_text
        split = [columns.split] if columns.split else []
        names = [*dict.fromkeys([*texts, columns.id, *split, *LABEL_COLUMNS])]
        of_text = pa.large_string() if columns.tokens is None else pa.large_list(pa.int64())
        kinds = [of_text if name in columns.of_text else pa.string() for name in names]
        others = [(name, pa.string()) for name in columns.others]
        schema = pa.schema([*zip(names, kinds, strict=True), *others])
        yield from gathered(_rows(file, opened, columns, names), schema)


def _rows(
    file: SourceFile, opened: BinaryIO, columns: Columns, names: list[str]
) -> Iterator[BadRow | tuple[int, list[str | None], int]]:
    asked = asked_for(columns)
    for row, (line_number, line) in enumerate(_lines(file, opened)):
        try:
            record = named_fields(_parse(line), asked)
            yield row, _values(line, record, columns, names), len(line)
        except (BadConversation, ValueError) as error:
            yield BadRow(row, f"line {line_number}", str(error))


def _values(
    line: bytes, record: dict[str, Any], columns: Columns, names: list[str]
) -> list[str | None]:
    """The strings of a row, and the JSON texts of the other columns that are asked for.

    Raises ValueError or BadConversation with the reason if it cannot be a row.
    """
    texts = text_columns(columns, record)
    if record.keys().isdisjoint(texts):
        # Not the names of the others, which may be text: reasons stay in the dataset.
        fields = "1 field" if len(record) == 1 else f"{len(record):,} fields"
        expected = " or ".join(map(repr, texts))
        raise ValueError(f"has no field {expected} (an object of {fields})")
    others = [
        _written(line, name) if record.get(name) is not None else None for name in columns.others
    ]
    if columns.conversations:
        texts = ()
        record[columns.text] = conversation_text(record, columns)
    for name in names:
        value = record.get(name)
        if columns.tokens is not None and name == columns.text:
            if value is not None:
                _check_ids(name, value)
            continue
        if value is None or isinstance(value, str):
            continue
        if name in texts and columns.template is None:
            raise ValueError(f"its {name!r} is {_kind(value)}, expected a string")
        if isinstance(value, dict | list):
            if name in texts or (name == columns.id and columns.id_required):
                also = ", a number or a boolean" if name in texts else " or a number"
                raise ValueError(f"its {name!r} is {_kind(value)}, expected a string{also}")
            record[name] = None
        elif isinstance(value, float) and abs(value) >= 1 << 63:
            # It may have been an integer of more than 64 bits.
            record[name] = _written(line, name)
        else:
            record[name] = json.dumps(value)
    return [*map(record.get, names), *others]


def _check_ids(name: str, value: object) -> None:
    """Raises ValueError for anything but a list of integers."""
    if not isinstance(value, list):
        raise ValueError(f"its {name!r} is {_kind(value)}, expected a list of integers")
    if any(type(each) is not int or each >= 1 << 63 for each in value):
        raise ValueError(f"its {name!r} holds something that is not an integer")


def _parse(line: bytes) -> dict[str, Any]:
    """The object of a line; raises ValueError with the reason if it is none."""
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


def _written(line: bytes, name: str) -> str:
    """The value of a field or path as a line, which is valid JSON, writes it."""
    try:
        for key in (name,) if name in _WRITTEN.decode(line) else name.split("."):
            line = _WRITTEN.decode(line)[key]
        return bytes(line).decode()
    except RecursionError:
        raise ValueError("is nested too deep to read its values exactly") from None


def _lines(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields line numbers and lines. Skips blank lines."""
    return (line for line in read_lines(file, opened) if line[1].strip())
