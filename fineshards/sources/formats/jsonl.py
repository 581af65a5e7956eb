"""JSON Lines, or one array of objects, plain or compressed: one block per file."""

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, BinaryIO

import msgspec
import orjson
import pyarrow as pa

from fineshards.chat.conversation import BadConversation
from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import (
    ColumnError,
    asked_for,
    conversation_text,
    named_columns,
    named_fields,
    text_columns,
)
from fineshards.sources.compression import (
    LONGEST,
    check_beginning,
    explained,
    open_text,
    read_lines,
)
from fineshards.sources.formats.format import Format, gathered, whole
from fineshards.sources.rows import LABEL_COLUMNS, RowBatch

_KINDS = {str: "a string", bool: "a boolean", dict: "an object", list: "an array"}
# What Python writes that is not JSON, and strings, which may hold its names.
_CONSTANT = re.compile(rb'("(?:[^"\\]|\\.)*+")|-?(?:NaN|Infinity)')
# Finds the values of an object as they are written.
_WRITTEN = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Finds the end of a value, whatever numbers and strings hold.
_ENDS = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
_BLANK = re.compile(r"[ \t\n\r]*")
# What follows an element as far as the beginning of another one, or the end of the array.
_AFTER = re.compile(r"[ \t\n\r]*+(?:,[ \t\n\r]*+(?=[^] \t\n\r])|(?=]))")
_BEGINNING, _PIECE, _FIRST_ROWS = 64, 1 << 20, 1_000


class JsonLines(Format):
    """Objects of JSON. C4 and Dolma name lines of them `.json.gz`."""

    endings = (".jsonl", ".jsonlines", ".ndjson", ".json")
    typed = False

    def objects(self, file: SourceFile, opened: BinaryIO) -> Iterator[dict[str, Any]]:
        """See Format."""
        for _, text in islice(_texts(file, opened), _FIRST_ROWS):
            with suppress(ValueError):
                yield _parse(text)[0]

    def blocks(
        self, file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int
    ) -> list[Block]:
        """See Format. Only the first object must have the columns, except those of a recipe."""
        for record in islice(self.objects(file, opened), 1):
            fields = named_fields(record, asked_for(columns))
            for required in named_columns(columns, fields):
                if required.name not in fields:
                    raise ColumnError(
                        f"{file.path}: its first object has no field {required.name!r}; its fields "
                        f"are {', '.join(record)}. {required.advice}"
                    )
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
    for row, (place, text) in enumerate(_texts(file, opened)):
        try:
            fields, text = _parse(text)
            record = named_fields(fields, asked)
            yield row, _values(text, record, columns, names), len(text)
        except (BadConversation, ValueError) as error:
            yield BadRow(row, place, str(error))


def _values(
    text: bytes, record: dict[str, Any], columns: Columns, names: list[str]
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
        _written(text, name) if record.get(name) is not None else None for name in columns.others
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
            record[name] = _written(text, name)
        else:
            record[name] = json.dumps(value)
    return [*map(record.get, names), *others]


def _check_ids(name: str, value: object) -> None:
    """Raises ValueError for anything but a list of integers."""
    if not isinstance(value, list):
        raise ValueError(f"its {name!r} is {_kind(value)}, expected a list of integers")
    if any(type(token) is not int or token >= 1 << 63 for token in value):
        raise ValueError(f"its {name!r} holds something that is not an integer")


def _parse(text: bytes) -> tuple[dict[str, Any], bytes]:
    """The object of a row, and its JSON; raises ValueError with the reason if it is none.

    NaN and infinities are null, as for the datasets library.
    """
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        text = _CONSTANT.sub(lambda match: match[1] or b"null", text)
        try:
            text.decode()
            record = orjson.loads(text)
        except UnicodeDecodeError as error:
            reason = f"byte 0x{text[error.start]:02X} at column {error.start + 1} is not UTF-8"
            raise ValueError(f"is not valid JSON ({reason})") from None
        except orjson.JSONDecodeError as error:
            raise ValueError(f"is not valid JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {_kind(record)}, expected an object")
    return record, text


def _kind(value: object) -> str:
    """What JSON calls a value, with its article."""
    return "null" if value is None else _KINDS.get(type(value), "a number")


def _written(text: bytes, name: str) -> str:
    """The value of a field or path as a text, which is valid JSON, writes it."""
    try:
        for key in (name,) if name in _WRITTEN.decode(text) else name.split("."):
            text = _WRITTEN.decode(text)[key]
        return bytes(text).decode()
    except RecursionError:
        raise ValueError("is nested too deep to read its values exactly") from None


def _texts(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yields the place and the text of each row: a line that is not blank, or an element."""
    with explained(file, lambda: "its beginning"):
        start = open_text(file, opened).read(_BEGINNING)
    opened.seek(0)
    check_beginning(file, start[:4])
    if start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
        for place, text in _elements(file, opened):
            # A string is a row of one column, as for the datasets library.
            yield place, b'{"text":%b}' % text if text.startswith(b'"') else text
        return
    for number, line in read_lines(file, opened):
        if line.strip():
            yield f"line {number}", line


def _elements(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yields the elements of an array with their places, of which it holds one at a time.

    Raises InputError for what is not one array, and for an element of more than LONGEST characters.
    """
    number = -1

    def place() -> str:
        return f"element {number}" if number >= 0 else "its beginning"

    with explained(file, place):
        stream = codecs.getreader("utf-8-sig")(open_text(file, opened), "surrogateescape")
        text = stream.read(_PIECE + _BEGINNING)
        at = _BLANK.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
        while text[at : at + 1] != "]":
            after, size = None, len(text) - at
            try:
                end = _ENDS.raw_decode(text, at)[1]
                after = _AFTER.match(text, end)
                may_go_on = len(text) - end < 16 or not text[end:].strip(" \t\n\r,")
            except json.JSONDecodeError as error:
                may_go_on = error.msg.startswith("Unterminated") or error.pos + 16 > len(text)
            except RecursionError:
                raise InputError(
                    f"{file.path}: after {place()} an element of its array is nested too deep. "
                    "Leave it out, or write one object per line."
                ) from None
            if after is not None:
                number += 1
                yield f"element {number}", text[at:end].encode("utf-8", "surrogateescape")
                at = after.end()
            else:
                more = may_go_on and size < LONGEST and stream.read(max(_PIECE, size))
                if not more:
                    raise InputError(
                        f"{file.path}: begins an array, but after {place()} it does not go on as "
                        "one. It is damaged or truncated, or an element is too long."
                    )
                text, at = text[at:] + more, 0
                at = _BLANK.match(text).end()  # type: ignore[union-attr]
        if (text[at + 1 :] + stream.read(_PIECE)).strip():
            raise InputError(
                f"{file.path}: more follows its array. Write one array, or one object per line."
            )
