"""JSON values as typed Arrow arrays: rows are grouped by the kinds of their values.

SQL needs a type per column, and a format without types has one per value. A group's types follow
from each of its rows alone, so no row's verdict depends on the others in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

# By kind. Integers of more than 38 digits are numbers.
_TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "large integer": pa.decimal128(38),
    "number": pa.float64(),
    "string": pa.large_string(),
    "other": pa.large_string(),  # the JSON text of an array or object
}
_DIGITS = 38


class TypedRows(NamedTuple):
    """Rows whose values have the same kinds.

    indices: their places, ascending, int64. columns: their values by column. json: the columns
    whose values are JSON text.
    """

    indices: npt.NDArray[np.int64]
    columns: dict[str, pa.Array]
    json: tuple[str, ...]


def groups(columns: dict[str, pa.Array], rows: int) -> Iterator[TypedRows]:
    """Groups rows by the kinds of their values, in the order of the groups' first rows.

    columns: JSON texts by column, with nulls, `rows` of them.
    """
    typed = {name: [_typed(text) for text in texts.to_pylist()] for name, texts in columns.items()}
    members: dict[tuple[str, ...], list[int]] = {}
    for index in range(rows):
        kinds = tuple(values[index][0] for values in typed.values())
        members.setdefault(kinds, []).append(index)
    for kinds, indices in members.items():
        arrays = {
            name: _array(kind, [values[index][1] for index in indices])
            for kind, (name, values) in zip(kinds, typed.items(), strict=True)
        }
        json = tuple(name for kind, name in zip(kinds, typed, strict=True) if kind == "other")
        yield TypedRows(np.array(indices, np.int64), arrays, json)


def _array(kind: str, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, _TYPES[kind])


def _typed(text: str | None) -> tuple[str, Any]:
    """Kind and value of a JSON text."""
    if text is None or text == "null":
        return "null", None
    first = text[0]
    if first == '"':
        return "string", orjson.loads(text)
    if first in "tf":
        return "boolean", first == "t"
    if first in "{[":
        return "other", text
    if text.lstrip("-").isdigit() and len(text.lstrip("-")) <= _DIGITS:
        value = int(text)
        return ("integer" if -(1 << 63) <= value < 1 << 63 else "large integer"), value
    return "number", float(text)
