"""Rows from the record batches of any format that has columns with types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.formats.conversations import (
    PAIR,
    choose_column,
    conversation_texts,
    text_columns,
)
from fineshards.sources.rows import LABEL_COLUMNS, Rows, joined_texts


def blocks_of(file: SourceFile, parts: Iterable[tuple[int, int]], block_bytes: int) -> list[Block]:
    """The blocks of a file. A block ends with the part that reaches `block_bytes`.

    parts: rows and bytes of each row group or record batch. A file without any has an empty block.
    """
    runs: list[list[int]] = []  # first part, stop part, first row, bytes
    row = 0
    for part, (rows, size) in enumerate(parts):
        if not runs or runs[-1][3] >= block_bytes:
            runs.append([part, part, row, 0])
        runs[-1][1] = part + 1
        runs[-1][3] += size
        row += rows
    runs = runs or [[0, 0, 0, 0]]
    return [Block(file.index, index, len(runs), *run) for index, run in enumerate(runs)]


def check_columns(file: SourceFile, schema: pa.Schema, columns: Columns) -> None:
    """Raises InputError unless a schema has all columns that are asked for, with usable types."""
    advice = choose_column(columns, schema.names)
    texts = text_columns(columns, schema.names)
    wanted = [(name, advice) for name in texts]
    if columns.id_required:
        wanted.append((columns.id, "Choose one with --id_column."))
    if columns.split is not None:
        wanted.append((columns.split, "Choose one with --split_key."))
    advice = "A step of the recipe, --columns or --column names it."
    wanted += [(name, advice) for name in columns.others]
    for name, advice in wanted:
        if schema.names.count(name) != 1:
            found = "several columns" if name in schema.names else "no column"
            raise InputError(
                f"{file.path} has {found} {name!r}; its columns are {', '.join(schema.names)}. "
                f"{advice}"
            )
    for name in schema.names:
        if name.lower() in columns.scores:
            raise InputError(
                f"{file.path} has a column {name!r}, and the recipe gives a score that name: "
                "where could mean either. Give the score another name."
            )
    for name in texts:
        kind = schema.field(name).type
        if columns.conversations:
            # Only rows without messages need the pair, so it is left to them.
            if name == columns.text or name not in PAIR or columns.text not in texts:
                _check_conversations(file, name, kind)
        elif columns.template is None and not is_text(kind):
            raise InputError(
                f"{file.path}: column {name!r} has type {kind}, expected a string type. Choose the "
                f"text column with {columns.text_flag}."
            )
        elif not _has_json_form(kind):
            raise InputError(
                f"{file.path}: column {name!r} has type {kind}, expected strings, integers, "
                f"floats or booleans. Choose another one with {columns.text_flag}."
            )
    if columns.id_required and not has_text_form(schema.field(columns.id).type):
        raise InputError(
            f"{file.path}: column {columns.id!r} has type {schema.field(columns.id).type}, "
            "expected strings or numbers. Choose the id column with --id_column."
        )
    if columns.split is not None and not has_text_form(schema.field(columns.split).type):
        raise InputError(
            f"{file.path}: column {columns.split!r} has type {schema.field(columns.split).type}, "
            "expected strings or numbers. Choose another split key with --split_key."
        )
    for name in columns.others:
        if not _can_be_filtered(schema.field(name).type):
            raise InputError(
                f"{file.path}: column {name!r} has type {schema.field(name).type}, which the steps "
                "of a recipe cannot read. Write it with another type, or change the step."
            )


def _check_conversations(file: SourceFile, name: str, kind: pa.DataType) -> None:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list or is_text(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"{file.path}: column {name!r} has type {kind}, expected lists of messages, or strings "
            "of their JSON. Choose the column of the messages with --text_column."
        )
    if _holds_a_map(kind):
        raise InputError(
            f"{file.path}: column {name!r} has maps in it, which are no objects. Give structs, or "
            "strings of JSON."
        )


def _holds_a_map(kind: pa.DataType) -> bool:
    within = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_map(kind) or any(map(_holds_a_map, within))


def columns_to_read(
    schema: pa.Schema, columns: Columns, can_be_read: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """The columns to read: those that were asked for, and others that the schema has, usable."""
    named = {*text_columns(columns, schema.names), *columns.others}
    if columns.split is not None:
        named.add(columns.split)
    if columns.id_required:
        named.add(columns.id)
    kinds = {columns.id: has_text_form} | dict.fromkeys(LABEL_COLUMNS, is_text)
    unasked = {
        name
        for name, is_kind in kinds.items()
        if _has(schema, name, is_kind) and name not in named and can_be_read(name)
    }
    return sorted(named | unasked)


def _has(schema: pa.Schema, name: str, is_kind: Callable[[pa.DataType], bool]) -> bool:
    return schema.names.count(name) == 1 and is_kind(schema.field(name).type)


def has_text_form(kind: pa.DataType) -> bool:
    """Whether values of a type can be cast to strings. Lists and structs cannot."""
    try:
        _as_text(pa.array([], kind), pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_view = pa.types.is_string_view(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view)


def _has_json_form(kind: pa.DataType) -> bool:
    """Whether a type is one of strings, numbers or booleans, or has nulls only."""
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return is_text(kind) or is_number or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _json_form(values: pa.Array) -> pa.Array:
    """Strings as they are, numbers and booleans as JSON writes them, as large_string."""
    if pa.types.is_floating(values.type):
        numbers = values.cast(pa.float64()).to_pylist()
        return pa.array(
            [None if each is None else json.dumps(each) for each in numbers], pa.large_string()
        )
    return _as_text(values, pa.large_string())


def rows_of(
    batch: pa.RecordBatch,
    numbers: npt.NDArray[np.int64],
    columns: Columns,
    place: Callable[[int], str] = lambda row: "",
) -> Rows:
    """The rows of a record batch with the columns of `columns_to_read`.

    numbers: those of its rows in the file, shape (n,). place: where a row is, as the beginning of
    an error message, by its number.
    A row of which a value that was asked for is not valid UTF-8 is a bad row.
    """
    reasons: dict[int, str] = {}
    parts: dict[str, pa.Array] = {}
    if columns.conversations:
        texts, reasons = conversation_texts(batch, columns)
    else:
        parts = {name: _json_form(batch.column(name)) for name in columns.of_text}
        texts = joined_texts(columns, parts)
    ids = pa.nulls(batch.num_rows, pa.string())
    # A column that may have another type, if no one asked for it, is not read.
    if columns.id in batch.schema.names and has_text_form(batch.schema.field(columns.id).type):
        ids = _as_text(batch.column(columns.id), pa.string())
    # A column that the user did not name must not reject a row.
    named = {name: _invalid(values) for name, values in parts.items()}
    if columns.id_required:
        named[columns.id] = _invalid(ids)
    else:
        ids = _without_invalid(ids)
    split = pa.nulls(batch.num_rows, pa.string())
    if columns.split is not None:
        split = _as_text(batch.column(columns.split), pa.string())
        named[columns.split] = _invalid(split)
    others = {name: _without_view(batch.column(name)) for name in columns.others}
    for name, values in others.items():
        named.setdefault(name, _invalid(values))
    labels = {
        name: _without_invalid(_as_text(batch.column(name), pa.string()))
        for name in LABEL_COLUMNS
        if _has(batch.schema, name, is_text)
    }
    rows = Rows(numbers, texts, ids, split, labels, others=others)
    return _without_bad(rows, reasons, named, place)


def _without_bad(
    rows: Rows, reasons: dict[int, str], invalid: dict[str, list[int]], place: Callable[[int], str]
) -> Rows:
    for name, indices in invalid.items():
        for index in indices:
            reasons.setdefault(index, f"its {name!r} is not valid UTF-8")
    if not reasons:
        return rows
    keep = np.ones(len(rows.numbers), dtype=np.bool_)
    keep[list(reasons)] = False
    found = [(int(rows.numbers[index]), reason) for index, reason in sorted(reasons.items())]
    bad = [BadRow(row, place(row), reason) for row, reason in found]
    return rows.filter(keep, bad)


def _without_view(values: pa.Array) -> pa.Array:
    """Strings or bytes without views, which few functions of pyarrow know."""
    kinds = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    kind = kinds.get(values.type)
    return values if kind is None else _as_text(values, kind)


def types_read(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The types that columns have in `Rows.others`."""
    kinds = [(name, _without_view(pa.nulls(0, schema.field(name).type)).type) for name in names]
    return pa.schema(kinds)


def _can_be_filtered(kind: pa.DataType) -> bool:
    try:
        _without_view(pa.nulls(0, kind)).filter(pa.array([], pa.bool_()))
    except pa.ArrowNotImplementedError:
        return False
    return True


def _as_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(options=pc.CastOptions(kind, allow_invalid_utf8=True))


def _invalid(values: pa.Array) -> list[int]:
    """The indices of values that are strings, or hold strings, which are not valid UTF-8."""
    if _is_valid(values):
        return []
    if pa.types.is_dictionary(values.type):
        return _invalid(values.dictionary_decode())  # each part has the whole dictionary
    # A slice of a list still has the values of the other lists.
    return [index for index in range(len(values)) if not _is_valid(values.take([index]))]


def _without_invalid(strings: pa.Array) -> pa.Array:
    """The strings with null in place of those that are not valid UTF-8."""
    invalid = _invalid(strings)
    if not invalid:
        return strings
    keep = np.ones(len(strings), dtype=np.bool_)
    keep[invalid] = False
    return pc.if_else(pa.array(keep), strings, pa.scalar(None, strings.type))


def _is_valid(values: pa.Array) -> bool:
    """Whether all strings are valid UTF-8. Writers need not check, and pyarrow does not."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
