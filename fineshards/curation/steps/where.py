"""Keeps the documents for which a SQL expression over their columns is true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.sql_expression import connection, parse
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError, UsageError

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


_TEXT = "text"
# No expression names this table or this column by chance.
_TABLE = "the documents of a batch"
_ROW = "the row of a document"


@dataclass(frozen=True)
class Where(Judge, name="where"):
    """Keeps a document if a SQL expression is true for its row; drops it if false or NULL.

    DuckDB evaluates the expression, without files, network or extensions. Only the columns that it
    names are read; `text` is the document's text as the steps before left it, and the name of an
    earlier step `score` is what that gave the document. What looks at other
    rows, at the clock or at random numbers is refused. Times with a zone are in UTC.

    In formats without types (JSON Lines), each row has the types of its own values: BIGINT (DECIMAL
    if it is larger), DOUBLE, BOOLEAN, VARCHAR, or JSON for arrays and objects. A column that a row
    does not have is NULL.

    Args:
        sql: A boolean expression in DuckDB's SQL, such as `language_score > 0.9`.

    Example:
        >>> step = Where("length(text) > 3 AND text NOT LIKE '%lorem%'")
        >>> step.columns, step.apply(Batch.of_texts(["some", "lorem ipsum", "any"])).reasons
        ((), [None, 'where', 'where'])
    """

    # An expression may fail for texts that are not like those of the input.
    GOLDEN: ClassVar[bool] = False

    sql: str

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self.sql)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in parse(self.sql).columns if name.lower() != _TEXT)

    @property
    def reads_scores(self) -> tuple[str, ...]:
        """See Step."""
        return self.columns

    def pins(self) -> dict[str, str]:
        return {"duckdb": version("duckdb")}

    def apply(self, batch: Batch) -> Outcome:
        """See Judge. Raises UsageError if the expression does not fit the columns' types."""
        named = {
            name: batch.columns[name] for name in self.columns if name.lower() not in batch.scores
        }
        if batch.columns_are_json:
            parts = groups(named, len(batch))
        else:
            parts = iter([TypedRows(np.arange(len(batch)), _plain(named), ())])
        kept = np.zeros(len(batch), np.bool_)
        for part in parts:
            kept[part.indices] = self._judge(batch, part)
        return Outcome([None if keep else "where" for keep in kept.tolist()])

    def _judge(self, batch: Batch, group: TypedRows) -> npt.NDArray[np.bool_]:
        """Whether each document of a group is kept."""
        columns, made = dict(group.columns), {_TEXT: batch.texts, **batch.scores}
        for name in parse(self.sql).columns:
            if name.lower() in made:
                columns[name] = made[name.lower()].take(pa.array(group.indices))
        # Without a column there would be no rows.
        table = pa.table({**columns, _ROW: pa.array(group.indices)})
        try:
            found = self._evaluate(table, group.json)
        except _EvaluationError as error:
            raise self._explained(batch, group, table, error) from error
        if found.kind != "BOOLEAN":
            valued = np.flatnonzero(~found.nulls)
            if not batch.columns_are_json:
                raise UsageError(
                    f"where: sql is {self.sql!r}, which gives {found.kind}, expected BOOLEAN."
                )
            if len(valued):
                raise InputError(
                    f"{self._place(batch, group, valued[0])}: sql is {self.sql!r}, which gives "
                    f"{found.kind} here, expected BOOLEAN."
                )
            return np.zeros(len(table), np.bool_)
        return found.values.astype(np.bool_) & ~found.nulls

    def _evaluate(self, table: pa.Table, json: tuple[str, ...]) -> _SqlValues:
        """The value of the expression for each row."""
        import duckdb

        database = connection()
        source = _quoted(_TABLE)
        if json:
            casts = ", ".join(f"{_quoted(name)}::JSON AS {_quoted(name)}" for name in json)
            source = f"(SELECT * REPLACE ({casts}) FROM {source})"
        try:
            database.register(_TABLE, table)
            answer = database.execute(f"SELECT ({self.sql}\n) AS value FROM {source}")
            kind = str(answer.description[0][1])
            values = answer.fetchnumpy()["value"]
        except duckdb.Error as error:
            raise _EvaluationError(str(error).splitlines()[0]) from error
        finally:
            database.unregister(_TABLE)
        return _SqlValues(kind, np.ma.getdata(values), np.ma.getmaskarray(values))

    def _explained(
        self, batch: Batch, group: TypedRows, table: pa.Table, error: _EvaluationError
    ) -> Exception:
        """What to say about an error: about the expression, or about the first row that has it."""
        if not batch.columns_are_json and not self._works(table.slice(0, 0), group.json):
            return UsageError(f"where: sql is {self.sql!r}, which DuckDB cannot evaluate: {error}")
        first, after = 0, len(table)
        while after - first > 1:
            middle = (first + after) // 2
            if self._works(table.slice(first, middle - first), group.json):
                first = middle
            else:
                after = middle
        return InputError(
            f"{self._place(batch, group, first)}: sql is {self.sql!r}, which DuckDB cannot "
            f"evaluate here: {error}"
        )

    def _works(self, table: pa.Table, json: tuple[str, ...]) -> bool:
        try:
            self._evaluate(table, json)
        except _EvaluationError:
            return False
        return True

    def _place(self, batch: Batch, group: TypedRows, index: int) -> str:
        return batch.place(int(batch.rows[group.indices[index]]))


class _EvaluationError(Exception):
    """What DuckDB says about an expression that it cannot evaluate."""


class _SqlValues(NamedTuple):
    """The values of an expression. kind: its type in SQL. values, nulls: shape (n,)."""

    kind: str
    values: npt.NDArray[Any]
    nulls: npt.NDArray[np.bool_]


def _plain(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Columns without dictionaries, so that no value is evaluated that no row has."""
    return {
        name: values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        for name, values in columns.items()
    }


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
