"""Which columns of a file are read, and the documents that are made of them, whatever the format.

The text of a row is a column, several by a template, or a conversation: its canonical JSON, from
the column that `--text_column` names (`messages`), or where that is null or absent, from those of
`pair_columns`; and from `tools`, if there is such a column. Or a document is tokens already: a list
of ids, which become bytes in place of a text. A name may also be a path with dots into structs.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.chat.conversation import BadConversation, canonical, pair_columns
from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, SourceFile
from fineshards.shards.job.settings import Columns, TokenIds
from fineshards.sources.rows import LABEL_COLUMNS, RowBatch, Rows
from fineshards.text_template import template_parts

# The column of formats that hold nothing but tokens, as most tools call theirs.
TOKENS_COLUMN = "input_ids"
_LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
_TOOLS = "tools"
# What Hive, Spark, DuckDB and pyarrow name a folder of nulls.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_STRINGS = (pa.string(), pa.large_string(), pa.string_view())
_TEXTS = (*_STRINGS, pa.binary(), pa.large_binary(), pa.binary_view(), pa.null())


class ColumnError(InputError):
    """A file lacks a column, or has one of a type that does not fit."""


class _Required(NamedTuple):
    """A column that must be there, of a type that fits, and what to do about another one."""

    name: str
    fits: Callable[[pa.DataType], bool]
    expected: str
    advice: str


def text_columns(columns: Columns, names: Collection[str]) -> tuple[str, ...]:
    """The columns that a file's texts consist of. names: of all of its columns."""
    if not columns.conversations:
        return columns.of_text
    pair = pair_columns(names)
    has_pair = columns.text not in names and {*pair} <= {*names}
    first = pair if has_pair else (columns.text,)
    # Only rows without messages need the pair, so one that is there twice is left to them.
    also = [name for name in pair if columns.text in names and [*names].count(name) == 1]
    return tuple(dict.fromkeys((*first, *also, *(name for name in names if name == _TOOLS))))


def named_columns(columns: Columns, names: Collection[str]) -> list[_Required]:
    """The columns that make documents and must be there.

    names: of all columns of a file.
    """
    conversations = "messages" in names and columns.text_flag == "--text_column"
    also = " For conversations, add --chat_template." if conversations else ""
    if TOKENS_COLUMN in names and columns.text_flag == "--text_column":
        also = f" For tokens, give --tokens_column {TOKENS_COLUMN}."
    fits, expected = is_text, "a string type"
    if columns.tokens is not None:
        fits, expected = _is_ids, "lists of integers"
    elif columns.conversations:
        fits = _is_conversation
        expected = "lists of messages without maps, or strings of their JSON"
    elif columns.template is not None:
        fits, expected = _has_json_form, "strings, integers, floats or booleans"
    advice = f"Choose one with {columns.text_flag} of fineshards build.{also}"
    texts = text_columns(columns, names)
    named = [_Required(name, fits, expected, advice) for name in texts]
    if columns.conversations and columns.text in texts:
        # Only rows without messages need the pair, so its types are left to them.
        named = [column for column in named if column.name in (columns.text, _TOOLS)]
    for name, flag in ((columns.id, "id_column"), (columns.split, "split_key")):
        if name is not None and (flag == "split_key" or columns.id_required):
            advice = f"Choose one with --{flag} of fineshards build."
            named.append(_Required(name, has_text_form, "strings or numbers", advice))
    return named


def named_fields(record: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """A record that also has the fields that paths with dots lead to, under the paths."""
    named = dict(record)
    for name in names - record.keys():
        with suppress(KeyError, TypeError):
            named[name] = reduce(getitem, name.split("."), record)
    return named


def check_columns(file: SourceFile, schema: pa.Schema, columns: Columns) -> pa.Schema:
    """The types of the columns of a file, also of those within structs that are asked for.

    Raises ColumnError unless all columns that are asked for are there, with usable types.
    """
    names, schema = schema.names, _with_paths(schema, columns)
    expected = "one that the steps of a recipe can read"
    advice = "A step of the recipe, --columns or --column names it."
    others = [_Required(name, _can_be_filtered, expected, advice) for name in columns.others]
    for name, fits, expected, advice in named_columns(columns, schema.names) + others:
        if schema.names.count(name) != 1:
            has = "several columns" if name in schema.names else "no column"
            if file.format in ("csv", "tsv") and any(other.startswith('"') for other in names):
                advice += " If its header is quoted, give --quoting quotes."
            raise ColumnError(
                f"{file.path} has {has} {name!r}; its columns are {', '.join(names)}. {advice}"
            )
        if not fits(kind := schema.field(name).type):
            raise ColumnError(
                f"{file.path}: column {name!r} has type {kind}, expected {expected}. {advice}"
            )
    for name in schema.names:
        if name.lower() in columns.scores:
            raise InputError(
                f"{file.path} has a column {name!r}, and the recipe gives a score that name: "
                "where could mean either. Give the score another name."
            )
    return schema


def folder_columns(folders: Iterable[str], columns: Columns) -> dict[str, str | None]:
    """The values that folders such as `lang=de` give to columns that are asked for.

    As for pyarrow they are decoded as in URLs, and the first of two folders counts.
    """
    asked, values = {*columns.others, columns.split, *LABEL_COLUMNS}, dict[str, str | None]()
    for folder in folders:
        name, is_pair, value = folder.partition("=")
        if is_pair and unquote(name) in asked:
            values.setdefault(unquote(name), None if value == _NULL_FOLDER else unquote(value))
    return values


def asked_for(columns: Columns) -> set[str]:
    """The names of all columns that are asked for."""
    id_ = columns.id if columns.id_required else None
    return {*columns.of_text, *columns.others, *filter(None, [id_, columns.split])}


def _with_paths(schema: pa.Schema, columns: Columns) -> pa.Schema:
    """A schema in which all columns that are asked for have a name of their own."""
    # Not by `_resolved`, with arrays of each type: some types have none, and they take memory.
    for name in sorted(asked_for(columns).difference(schema.names)):
        with suppress(AttributeError, KeyError, TypeError):
            kind = reduce(lambda outer, key: outer.field(key).type, name.split("."), schema)
            schema = schema.append(pa.field(name, kind))
    return schema


def _resolved(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """A record batch in which all columns that are asked for have a name of their own."""
    for name in sorted(asked_for(columns).difference(batch.schema.names)):
        with suppress(KeyError, pa.ArrowInvalid):
            values = pc.struct_field(batch.to_struct_array(), name.split("."))
            batch = batch.append_column(name, values)
    return batch


def wanted_columns(schema: pa.Schema, columns: Columns) -> list[str]:
    """The columns to read: those that were asked for, and others that the schema has, usable."""
    texts = text_columns(columns, _with_paths(schema, columns).names)
    named = {*texts} | (asked_for(columns) - {*columns.of_text})
    kinds = {columns.id: has_text_form} | dict.fromkeys(LABEL_COLUMNS, is_text)
    usable = {name for name, fits in kinds.items() if _has(schema, name, fits)} - named
    return sorted(named | usable)


def _has(schema: pa.Schema, name: str, fits: Callable[[pa.DataType], bool]) -> bool:
    return schema.names.count(name) == 1 and fits(schema.field(name).type)


def has_text_form(kind: pa.DataType) -> bool:
    """Whether values of a type can be cast to strings. Lists and structs cannot."""
    return _works(lambda: _as_text(pa.array([], kind), pa.string()))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of strings, or of bytes, which may be UTF-8, or has nulls only."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in _TEXTS or pa.types.is_fixed_size_binary(kind)


def _is_ids(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of integers."""
    return any(fits(kind) for fits in _LISTS) and bool(pa.types.is_integer(kind.value_type))


def _has_json_form(kind: pa.DataType) -> bool:
    """Whether a type is one of strings, numbers or booleans, or has nulls only."""
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    return is_text(kind) or is_number or pa.types.is_boolean(kind)


def _is_conversation(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return (is_list and not _holds_a_map(kind)) or is_text(kind)


def _holds_a_map(kind: pa.DataType) -> bool:
    within = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_map(kind) or any(map(_holds_a_map, within))


def _can_be_filtered(kind: pa.DataType) -> bool:
    return _works(lambda: without_view(pa.nulls(0, kind)).filter(pa.array([], pa.bool_())))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except pa.ArrowNotImplementedError:
        return False
    return True


def rows_of(read: RowBatch, columns: Columns, typed: bool, counted: Collection[str]) -> Rows:
    """The documents of a record batch with the columns of `wanted_columns`.

    A row of which a value that was asked for is not valid UTF-8 is a bad row.

    Args:
        read: The batch. Without types, its last columns are `Columns.others`, as JSON texts; those
            before are strings, of which that of the text has conversations as they shall be.
        columns: Which columns are what.
        typed: Whether the columns have the types of the file.
        counted: Columns that are labels.
    """
    numbers, batch, bad = read
    if typed:
        batch = _resolved(batch, columns)
        others = {name: without_view(batch.column(name)) for name in columns.others}
    else:
        last = batch.num_columns - len(columns.others)
        others = dict(zip(columns.others, batch.columns[last:], strict=True))
        batch = batch.select([*range(last)])
    reasons: dict[int, str] = {}
    # A column that the user did not name must not reject a row.
    asked: dict[str, pa.Array] = {}
    if columns.tokens is not None:
        texts, reasons = _token_bytes(batch.column(columns.text), columns.tokens)
    elif columns.conversations and typed:
        texts, reasons = _conversations(batch, columns)
    elif columns.conversations:
        texts = batch.column(columns.text).cast(pa.large_string())
    else:
        asked = {name: _json_form(batch.column(name)) for name in columns.of_text}
        texts = _joined(columns, asked)
    ids = split = pa.nulls(batch.num_rows, pa.string())
    if _has(batch.schema, columns.id, has_text_form):
        ids = _as_text(batch.column(columns.id), pa.string())
    if columns.id_required:
        asked[columns.id] = ids
    else:
        ids = _without_invalid(ids)
    if columns.split is not None:
        split = asked[columns.split] = _as_text(batch.column(columns.split), pa.string())
    labels = {
        name: _without_invalid(_as_text(batch.column(name), pa.string()))
        for name in counted
        if _has(batch.schema, name, is_text)
    }
    for name, values in [*asked.items(), *others.items()]:
        for index in _invalid(values):
            reasons.setdefault(index, f"its {name!r} is not valid UTF-8")
    rows = Rows(numbers, texts, ids, split, labels, bad, others, not typed)
    if not reasons:
        return rows
    bad = [*bad, *(BadRow(int(numbers[index]), "", reason) for index, reason in reasons.items())]
    keep = ~np.isin(np.arange(len(numbers)), [*reasons])
    return rows.filter(keep, sorted(bad, key=lambda row: row.row))


def _joined(columns: Columns, values: Mapping[str, pa.Array]) -> pa.Array:
    """The texts of rows, of the columns that they consist of, as large_string.

    A text is null if all its columns are; otherwise a null is an empty text.
    """
    if columns.template is None:
        return values[columns.text]
    parts = [
        values[part] if number % 2 else pa.scalar(part, pa.large_string())
        for number, part in enumerate(template_parts(columns.template))
    ]
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar("", pa.large_string()), null_handling="replace", null_replacement=""
    )
    is_null = reduce(pc.and_, [column.is_null() for column in values.values()])
    return pc.if_else(is_null, pa.scalar(None, pa.large_string()), joined)


def conversation_text(record: Mapping[str, Any], columns: Columns) -> str | None:
    """The conversation of a row, null where it has none; raises BadConversation for a bad one."""
    names = text_columns(columns, record)
    if all(record.get(name) is None for name in names if name != _TOOLS):
        return None
    values = ((name, record.get(name)) for name in names)
    row = {name: value.decode() if isinstance(value, bytes) else value for name, value in values}
    if columns.text in row:
        row["messages"] = row.pop(columns.text)
    return canonical(row, columns.drop_reasoning)


def _conversations(batch: pa.RecordBatch, columns: Columns) -> tuple[pa.Array, dict[int, str]]:
    """The conversations of a record batch, and why a row has none, by its index."""
    texts: list[str | None] = []
    reasons = {}
    names = text_columns(columns, batch.schema.names)
    # A row with messages does not need the pair, which must not reject it.
    alone = [name for name in names if name in (columns.text, _TOOLS)] or names
    for index in range(batch.num_rows):
        row, text = batch.slice(index, 1), None
        try:
            (record,) = row.select(alone).to_pylist()
            if record.get(columns.text) is None:
                (record,) = row.select(names).to_pylist()
            text = conversation_text(record, columns)
        except UnicodeDecodeError:
            reasons[index] = "its conversation is not valid UTF-8"
        except BadConversation as error:
            reasons[index] = str(error)
        texts.append(text)
    return pa.array(texts, pa.large_string()), reasons


def _token_bytes(lists: pa.Array, ids: TokenIds) -> tuple[pa.Array, dict[int, str]]:
    """The tokens of rows as little-endian uint32, and why a row has none, by its index.

    Without the EOTs at either end, which may be padding; those between other tokens stay.

    lists: a list of ids per row, or null, which becomes null. ids: those of the tokenizer.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    values = lists.flatten().cast(pa.int64(), safe=False)  # beyond 63 bits they are negative
    tokens = pc.fill_null(values, -1).to_numpy()
    stops = np.cumsum(lengths)
    starts = stops - lengths
    wrong = np.flatnonzero((tokens < 0) | (tokens >= ids.size))
    rows, first_wrong = np.unique(np.searchsorted(stops, wrong, side="right"), return_index=True)
    reasons = {
        row: f"its token {at} is null, or not an id of the tokenizer, which has {ids.size:,}"
        for row, at in zip(rows.tolist(), (wrong[first_wrong] - starts[rows]).tolist(), strict=True)
    }
    others = np.flatnonzero(tokens != ids.eot)
    next_other, last_other = np.append(others, len(tokens)), np.append(-1, others)
    begins = np.minimum(next_other[np.searchsorted(others, starts)], stops)
    ends = np.maximum(last_other[np.searchsorted(others, stops)] + 1, begins)
    if (ends - begins).sum() < len(tokens):
        depth = np.bincount(begins, minlength=len(tokens) + 1)
        depth -= np.bincount(ends, minlength=len(tokens) + 1)
        tokens = tokens[np.cumsum(depth)[:-1] > 0]
    offsets = 4 * np.append(0, np.cumsum(ends - begins))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(tokens.astype("<u4"))]
    documents = pa.Array.from_buffers(pa.large_binary(), len(lists), buffers)
    if lists.null_count:
        documents = pc.if_else(lists.is_valid(), documents, pa.scalar(None, pa.large_binary()))
    return documents, reasons


def _json_form(values: pa.Array) -> pa.Array:
    """Strings as they are, numbers and booleans as JSON writes them, as large_string."""
    if pa.types.is_floating(values.type):
        numbers = values.cast(pa.float64()).to_pylist()
        return pa.array([None if n is None else json.dumps(n) for n in numbers], pa.large_string())
    return _as_text(values, pa.large_string())


def without_view(values: pa.Array) -> pa.Array:
    """Strings or bytes without views, which few functions of pyarrow know."""
    kinds = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    kind = kinds.get(values.type)
    return values if kind is None else _as_text(values, kind)


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
    is_invalid = pa.array(np.isin(np.arange(len(strings)), invalid))
    return pc.if_else(is_invalid, pa.scalar(None, strings.type), strings)


def _is_valid(values: pa.Array) -> bool:
    """Whether all strings are valid UTF-8. Writers need not check, and pyarrow does not."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
