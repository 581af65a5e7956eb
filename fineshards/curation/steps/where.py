"""Keeps the documents for which a SQL expression over their columns is true.

DuckDB itself is asked for the syntax tree (`json_serialize_sql`) and for which functions exist and
how stable they are (`duckdb_functions`). Only forms of expressions that are known to look at one
row pass; what is refused is named.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from types import NoneType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.step import Judge, Outcome
from fineshards.errors import InputError, UsageError
from fineshards.extras import naming_the_extra

# Forms of expressions that look at their row alone.
_CLASSES = {
    *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT"),
    *("FUNCTION", "LAMBDA", "LAMBDA_REF", "OPERATOR", "TYPE"),
}
_REFUSED = {
    "SUBQUERY": "a subquery, which looks at other rows",
    "WINDOW": "a window function, which looks at other rows",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "the position of a column",
}
# Functions that depend on the clock although DuckDB lists them as consistent.
_CLOCKS = {"current_localtime", "current_localtimestamp"}
# What a node holds in addition to expressions.
_PLACES = {"query_location", "query_location_length"}
_KINDS = (
    "SELECT function_type, stability, parameters, macro_definition FROM duckdb_functions() "
    "WHERE lower(function_name) = lower($1)"
)
_TEXT = "text"
# No expression names this table or this column by chance.
_TABLE = "the documents of a batch"
_ROW = "the row of a document"

_per_thread = threading.local()
# Connections do not survive a fork, and to close an inherited one ends the process by SIGSEGV.
_inherited: list[Any] = []


def _leave_inherited() -> None:
    _inherited.append(dict(_per_thread.__dict__))
    _per_thread.__dict__.clear()


os.register_at_fork(after_in_child=_leave_inherited)


@dataclass(frozen=True)
class Where(Judge, name="where"):
    """Keeps a document if a SQL expression is true for its row; drops it if false or NULL.

    DuckDB evaluates the expression, without files, network or extensions. Only the columns that it
    names are read; `text` is the document's text as the steps before left it, and the name of an
    earlier step `score` is what that gave the document. What looks at other
    rows, at the clock or at random numbers is refused. Times with a zone are in UTC. A NaN of a
    column is NULL, since DuckDB takes NaN for larger than any number.

    In formats without types (JSON Lines), each row has the types of its own values: BIGINT (DECIMAL
    if it is larger), DOUBLE, BOOLEAN, VARCHAR, or JSON for arrays and objects. A column that a row
    does not have is NULL. `meta.lang` is the field `lang` of the object `meta`.

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
        columns_read(self.sql)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in columns_read(self.sql) if name.lower() != _TEXT)

    @property
    def reads_scores(self) -> tuple[str, ...]:
        return self.columns

    def pins(self) -> dict[str, str]:
        return {"duckdb": version("duckdb")}

    def apply(self, batch: Batch) -> Outcome:
        """See Judge. Raises UsageError if the expression does not fit the columns' types."""
        named = {
            name: batch.columns[name] for name in self.columns if name.lower() not in batch.scores
        }
        is_true = np.zeros(len(batch), np.bool_)
        if batch.columns_are_json:
            parts = _parts(named, len(batch))
        else:
            parts = iter([_Part(np.arange(len(batch)), named, ())])
        for part in parts:
            is_true[part.places] = self._judge(batch, part)
        return Outcome([None if true else "where" for true in is_true.tolist()])

    @naming_the_extra()
    def _judge(self, batch: Batch, part: _Part) -> npt.NDArray[np.bool_]:
        """Whether each document of a part is kept."""
        import duckdb

        columns, made = dict(part.columns), {_TEXT: batch.texts, **batch.scores}
        for name in columns_read(self.sql):
            if name.lower() in made:
                columns[name] = made[name.lower()].take(pa.array(part.places))
        # Without a column there would be no rows.
        table = pa.table({**_plain(columns), _ROW: pa.array(part.places)})

        def fails(rows: int) -> bool:
            """Whether the expression cannot be evaluated for so many of the first rows."""
            try:
                self._evaluate(table.slice(0, rows), part.json)
            except duckdb.Error:
                return True
            return False

        def place(index: int) -> str:
            return batch.place(int(batch.rows[part.places[index]]))

        named = f"sql is {self.sql!r}, which"
        try:
            kind, values = self._evaluate(table, part.json)
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            if not batch.columns_are_json and fails(0):
                types = ", ".join(f"{name} {values.type}" for name, values in part.columns.items())
                where = f". In {batch.path} it reads {types}." if types else ""
                raise UsageError(f"where: {named} DuckDB cannot evaluate: {why}{where}") from error
            first = bisect_left(range(1, len(table)), True, key=fails)
            at = place(first)
            raise InputError(f"{at}: {named} DuckDB cannot evaluate here: {why}") from error
        if kind == "BOOLEAN":
            return np.ma.filled(values, False).astype(np.bool_)
        if not batch.columns_are_json:
            raise UsageError(f"where: {named} gives {kind}, expected BOOLEAN.")
        for index in np.flatnonzero(~np.ma.getmaskarray(values)).tolist():
            raise InputError(f"{place(index)}: {named} gives {kind} here, expected BOOLEAN.")
        return np.zeros(len(table), np.bool_)

    def _evaluate(self, table: pa.Table, json: tuple[str, ...]) -> tuple[str, Any]:
        """The type of the expression in SQL, and its value for each row, as a masked array."""
        database, source = connection(), _quoted(_TABLE)
        if json:
            casts = ", ".join(f"{_quoted(name)}::JSON AS {_quoted(name)}" for name in json)
            source = f"(SELECT * REPLACE ({casts}) FROM {source})"
        try:
            database.register(_TABLE, table)
            answer = database.execute(f"{_selecting(self.sql)} AS value FROM {source}")
            return str(answer.description[0][1]), answer.fetchnumpy()["value"]
        finally:
            database.unregister(_TABLE)


class _Part(NamedTuple):
    """Documents whose values have the same types.

    places: theirs in the batch, ascending, int64. columns: their values by column. json: the
    columns whose values are JSON text.
    """

    places: npt.NDArray[np.int64]
    columns: dict[str, pa.Array]
    json: tuple[str, ...]


def _parts(columns: dict[str, pa.Array], count: int) -> Iterator[_Part]:
    """Documents by the types of their values, in the order of the parts' first documents.

    columns: JSON texts by column, with nulls, `count` of them.
    """
    typed = {name: list(map(_typed, texts.to_pylist())) for name, texts in columns.items()}
    members: dict[tuple[Any, ...], list[int]] = {}
    for index in range(count):
        kinds = tuple(values[index][0] for values in typed.values())
        members.setdefault(kinds, []).append(index)
    for kinds, places in members.items():
        arrays = {
            name: pa.array([values[index][1] for index in places], kind or pa.large_string())
            for kind, (name, values) in zip(kinds, typed.items(), strict=True)
        }
        json = tuple(name for kind, name in zip(kinds, typed, strict=True) if kind is None)
        yield _Part(np.array(places, np.int64), arrays, json)


def _integer(text: str) -> int | float:
    """An integer of JSON; one of more than 38 digits is a number."""
    return int(text) if len(text.lstrip("-")) <= 38 else float(text)


_decode = json.JSONDecoder(parse_int=_integer).decode
_TYPES = {NoneType: pa.null(), bool: pa.bool_(), float: pa.float64(), str: pa.large_string()}


def _typed(text: str | None) -> tuple[pa.DataType | None, Any]:
    """Type and value of JSON text; None and the text itself for an array or object."""
    if text is not None and text.lstrip().startswith(("[", "{")):  # however deep it is
        return None, text
    value = None if text is None else _decode(text)
    if type(value) is int:
        return pa.int64() if -(1 << 63) <= value < 1 << 63 else pa.decimal128(38), value
    return _TYPES[type(value)], value


def _plain(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Columns without dictionaries, so that no value is evaluated that no row has, and NaN."""
    plain = {}
    for name, values in columns.items():
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        plain[name] = values
    return plain


@lru_cache(maxsize=64)
def _selecting(sql: str) -> str:
    """A SELECT of an expression, in which a path is the name of a column: `"meta.lang"`."""
    ask = connection().execute
    [[answer]] = ask("SELECT json_serialize_sql($1)", [f"SELECT ({sql}\n)"]).fetchall()
    parsed = json.loads(answer)
    for names in _columns(parsed["statements"][0]["node"]["select_list"], sql, frozenset()):
        names[:] = [".".join(names)]
    [[answer]] = ask("SELECT json_deserialize_sql($1::JSON)", [json.dumps(parsed)]).fetchall()
    return str(answer)


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


@naming_the_extra()
def connection() -> Any:
    """This thread's DuckDB: in memory, with one thread, no files, no network, no extensions."""
    opened = getattr(_per_thread, "connection", None)
    if opened is None:
        import duckdb

        opened = duckdb.connect(
            config={
                "threads": 1,
                "enable_external_access": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                # The arrow is JSON's; a lambda is written `lambda x: …`.
                "lambda_syntax": "DISABLE_SINGLE_ARROW",
            }
        )
        # How times with a zone are read and shown must not depend on the machine.
        opened.execute("SET TimeZone = 'UTC'")
        opened.execute("SET lock_configuration = true")
        _per_thread.connection = opened
    return opened


@lru_cache(maxsize=64)
def columns_read(sql: str) -> tuple[str, ...]:
    """The columns that a boolean expression reads, in order of name.

    Raises UsageError unless it is an expression that depends on its row alone.
    """
    if not sql.strip():
        raise _refusal(sql, "is empty")
    columns = sorted({".".join(names) for names in _columns(_tree(sql), sql, frozenset())})
    lowered: dict[str, str] = {}
    for name in columns:
        if _is_clock(name):
            raise _refusal(sql, f"names {name}, which does not depend on the row alone")
        other = lowered.setdefault(name.lower(), name)
        if other != name:
            raise _refusal(sql, f"names {other!r} and {name!r}, which are one to SQL. Use one")
    return tuple(columns)


def _refusal(sql: str, reason: str) -> UsageError:
    return UsageError(f"where: sql is {sql!r}, which {reason}.")


def _tree(sql: str) -> Any:
    """The syntax tree of an expression."""
    node, around = _select(f"SELECT ({sql}\n)", sql), _select("SELECT (TRUE\n)", sql)
    # Two of them, joined by UNION and the like, have no list of their own.
    expressions = node.pop("select_list", [])
    around.pop("select_list")
    # What leaves the parentheses around it is not an expression.
    if node != around or len(expressions) != 1 or expressions[0].get("alias"):
        raise _refusal(sql, "is not a single expression. Give what could stand behind WHERE")
    return expressions[0]


def _select(query: str, sql: str) -> Any:
    [[answer]] = connection().execute("SELECT json_serialize_sql($1)", [query]).fetchall()
    parsed = json.loads(answer)
    if parsed["error"]:
        raise _refusal(sql, f"DuckDB cannot read: {parsed['error_message']}")
    if len(parsed["statements"]) != 1:
        raise _refusal(sql, "is not a single expression. Give what could stand behind WHERE")
    return _without_places(parsed["statements"][0]["node"])


def _without_places(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_places(value) for key, value in node.items() if key not in _PLACES}
    return [_without_places(one) for one in node] if isinstance(node, list) else node


def _columns(node: Any, sql: str, bound: frozenset[str]) -> Iterator[list[str]]:
    """The columns that an expression reads, each as the names of a path.

    Raises UsageError for a form that is refused.

    bound: names, in lower case, that the parameters of lambdas around it have.
    """
    if isinstance(node, list):
        for one in node:
            yield from _columns(one, sql, bound)
        return
    if not isinstance(node, dict):
        return
    kind = node.get("class")
    if kind is not None and kind not in _CLASSES:
        raise _refusal(
            sql,
            f"has {_REFUSED.get(kind, kind.lower())}; only expressions of one row "
            "and its columns can be used",
        )
    if kind == "COLUMN_REF":
        if node["column_names"][0].lower() not in bound:
            yield node["column_names"]
        return
    if kind == "FUNCTION":
        _check_function(node, sql)
    if kind == "LAMBDA" and node.get("syntax_type") != "SINGLE_ARROW":
        parameters = _columns(node["lhs"], sql, frozenset())
        yield from _columns(node["expr"], sql, bound | {name.lower() for (name,) in parameters})
        return
    for value in node.values():
        yield from _columns(value, sql, bound)


def _is_clock(name: str) -> bool:
    """Whether DuckDB takes a name for the time, such as current_date, where no column has it."""
    import duckdb

    try:
        # Others of this kind are constant strings, such as user, which may well be a column.
        answer = connection().execute(f"SELECT typeof({_quoted(name)})").fetchall()
    except duckdb.Error:
        return False
    return bool(answer != [("VARCHAR",)])


def _check_function(node: Any, sql: str) -> None:
    name = node["function_name"]
    if before := ".".join(filter(None, (node.get("catalog"), node.get("schema")))):
        # DuckDB takes it for a column or for a schema, as it finds one.
        raise _refusal(
            sql, f"calls {before}.{name}; write {name}({before}), or {name}(…) if that is a schema"
        )
    kinds = connection().execute(_KINDS, [name]).fetchall()
    if not kinds:
        raise _refusal(sql, f"calls {name}, which is not a function of DuckDB")
    # With one argument, the age is that of today. Versions of DuckDB name arguments differently.
    arguments = node["arguments"] if "arguments" in node else node["children"]
    is_age_now = name.lower() == "age" and len(arguments) == 1
    if is_age_now or name.lower() in _CLOCKS:
        raise _refusal(sql, f"calls {name}, which does not depend on the row alone")
    # A scalar may share its name with a table function or a pragma, which no expression can call.
    per_row = [kind for kind in kinds if kind[0] in ("scalar", "macro")]
    if not per_row or any(kind in ("aggregate", "window") for kind, *_ in kinds):
        raise _refusal(sql, f"calls {name}, which looks at other rows or makes new ones")
    for kind, stability, parameters, definition in per_row:
        if kind == "scalar" and stability != "CONSISTENT":
            raise _refusal(sql, f"calls {name}, which does not depend on the row alone")
        if kind == "macro":
            _check_macro(name, parameters, definition, sql)


def _check_macro(name: str, parameters: list[str], definition: str, sql: str) -> None:
    """A macro is pure if it names its parameters alone and calls what is pure."""
    try:
        others = {".".join(names) for names in _columns(_tree(definition), definition, frozenset())}
    except UsageError as error:
        raise _refusal(sql, f"calls {name}, which is {definition!r} to DuckDB") from error
    if {other.lower() for other in others} - {parameter.lower() for parameter in parameters}:
        raise _refusal(sql, f"calls {name}, which does not depend on the row alone")
