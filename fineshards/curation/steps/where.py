"""Keeps the documents for which a SQL expression over their columns is true."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.json_kinds import TypedRows, groups
from fineshards.curation.sql_expression import connection, parse
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError, UsageError

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
