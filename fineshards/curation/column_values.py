"""Values of a batch's columns as Python values, whatever the format."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.errors import InputError

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9


def values_of(batch: Batch, column: str) -> list[Any]:
    """The values of a column, one per document; None where there is none.

    Dates, times and durations are those of Python, cut to microseconds.

    Raises InputError for a value that Python's types cannot hold; names its row.
    """
    values = batch.columns[column]
    if batch.columns_are_json:
        return [None if value is None else orjson.loads(value) for value in values.to_pylist()]
    # With nanoseconds, the values would depend on whether pandas is installed.
    kind = _replaced(values.type, _without_nanoseconds)
    values = values if kind == values.type else values.cast(kind, safe=False)
    try:
        return _listed(values)
    except (ValueError, OverflowError, KeyError):
        for index, row in enumerate(batch.rows.tolist()):
            try:
                values.slice(index, 1).to_pylist()
            except (ValueError, OverflowError, KeyError) as error:
                raise InputError(
                    f"{batch.place(row)}: its {column!r} of type {values.type} cannot be a value "
                    f"of Python: {error}."
                ) from error
        raise


def values_to_compare(batch: Batch, column: str) -> list[Any]:
    """The values of a column, one per document, to be compared; None where there is none.

    Dates, times and durations are numbers of nanoseconds, so that the same ones are equal whatever
    their unit is. Raises InputError for those within lists, structs and maps.
    """
    values = batch.columns[column]
    if batch.columns_are_json:
        return [None if value is None else json.loads(value) for value in values.to_pylist()]
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if _is_time(kind):
        unit = _DAY if pa.types.is_date32(kind) else _NANOSECONDS[getattr(kind, "unit", "ms")]
        numbers = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
        return [None if number is None else number * unit for number in numbers]
    if _replaced(kind, lambda leaf: pa.null() if _is_time(leaf) else leaf) != kind:
        raise InputError(
            f"{batch.place(batch.rows[0])}: its {column!r} of type {kind} has times within it, "
            "which cannot be compared. Choose a column of plain values."
        )
    return _listed(values)


def compared_bytes(value: object) -> bytes | None:
    """The bytes by which values of a column are compared; None for null.

    A text is compared by its UTF-8, bytes as they are, and other values by their JSON text with
    sorted keys; in it, what JSON does not have is a string.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # JSON may have a lone surrogate, which is not UTF-8.
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode(
        "utf-8", "surrogatepass"
    )


def _listed(values: pa.Array) -> list[Any]:
    listed: list[Any] = values.to_pylist()
    return listed


def _replaced(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with other types at its leaves. A dictionary becomes its values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _replaced(kind.value_type, leaf)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_replaced(field.type, leaf)) for field in kind])
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_replaced(key.type, leaf)), item.with_type(_replaced(item.type, leaf))
        )
    make = _LISTS.get(kind.id)
    if make is not None:
        field = kind.value_field
        return make(field.with_type(_replaced(field.type, leaf)), kind)
    return leaf(kind)


_LISTS: dict[int, Callable[[pa.Field, pa.DataType], pa.DataType]] = {
    pa.lib.Type_LIST: lambda field, kind: pa.list_(field),
    pa.lib.Type_LARGE_LIST: lambda field, kind: pa.large_list(field),
    pa.lib.Type_FIXED_SIZE_LIST: lambda field, kind: pa.list_(field, kind.list_size),
}


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind) or getattr(kind, "unit", "") != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def strings_of(batch: Batch, column: str) -> list[str | None]:
    """The values of a column of strings.

    Raises InputError for a value that is not a string; names its row.
    """
    values = values_of(batch, column)
    for row, value in zip(batch.rows.tolist(), values, strict=True):
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"{batch.place(row)}: its {column!r} is {type(value).__name__} {value!r:.50}, "
                "expected a string."
            )
    return values
