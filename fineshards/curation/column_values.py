"""Values of a batch's columns as Python values, whatever the format."""

from __future__ import annotations

from typing import Any

import orjson

from fineshards.curation.batch import Batch
from fineshards.errors import InputError


def values_of(batch: Batch, column: str) -> list[Any]:
    """The values of a column, one per document; None where there is none."""
    values: list[Any] = batch.columns[column].to_pylist()
    if not batch.columns_are_json:
        return values
    return [None if value is None else orjson.loads(value) for value in values]


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
