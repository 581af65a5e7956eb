"""What a boolean SQL expression reads, and whether it is a function of its row, by DuckDB's parser.

DuckDB itself is asked for the syntax tree (`json_serialize_sql`) and for which functions exist and
how stable they are (`duckdb_functions`). Only forms of expressions that are known to look at one
row pass; what is refused is named.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from fineshards.errors import UsageError
from fineshards.extras import naming_the_extra

# Forms of expressions that look at their row alone.
_CLASSES = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLLATE",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "LAMBDA",
    "LAMBDA_REF",
    "OPERATOR",
    "TYPE",
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

_per_thread = threading.local()
# Connections do not survive a fork, and to close an inherited one ends the process by SIGSEGV.
_inherited: list[Any] = []


def _leave_inherited() -> None:
    _inherited.append(dict(_per_thread.__dict__))
    _per_thread.__dict__.clear()


os.register_at_fork(after_in_child=_leave_inherited)


class Expression(NamedTuple):
    """A boolean expression. columns: the names of the columns that it reads, in order of name."""

    sql: str
    columns: tuple[str, ...]


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
def parse(sql: str) -> Expression:
    """Reads an expression; raises UsageError unless it is one that depends on its row alone."""
    if not sql.strip():
        raise _refusal(sql, "is empty")
    found = set(_columns(_tree(sql), sql, frozenset()))
    for name in sorted(found):
        if _is_clock(name):
            raise _refusal(sql, f"names {name}, which does not depend on the row alone")
    lowered: dict[str, str] = {}
    for name in sorted(found):
        other = lowered.setdefault(name.lower(), name)
        if other != name:
            raise _refusal(sql, f"names {other!r} and {name!r}, which are one to SQL. Use one")
    return Expression(sql, tuple(sorted(found)))


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


def _columns(node: Any, sql: str, bound: frozenset[str]) -> Iterator[str]:
    """The columns that an expression names; raises UsageError for a form that is refused.

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
        name = node["column_names"][0]
        if name.lower() not in bound:
            yield name
        return
    if kind == "FUNCTION":
        _check_function(node, sql)
    if kind == "LAMBDA" and node.get("syntax_type") != "SINGLE_ARROW":
        parameters = _columns(node["lhs"], sql, frozenset())
        yield from _columns(node["expr"], sql, bound | {name.lower() for name in parameters})
        return
    for value in node.values():
        yield from _columns(value, sql, bound)


def _is_clock(name: str) -> bool:
    """Whether DuckDB takes a name for the time, such as current_date, where no column has it."""
    import duckdb

    quoted = name.replace('"', '""')
    try:
        # Others of this kind are constant strings, such as user, which may well be a column.
        answer = connection().execute(f'SELECT typeof("{quoted}")').fetchall()
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
    kinds = (
        connection()
        .execute(
            "SELECT function_type, stability, parameters, macro_definition FROM duckdb_functions() "
            "WHERE lower(function_name) = lower($1)",
            [name],
        )
        .fetchall()
    )
    if not kinds:
        raise _refusal(sql, f"calls {name}, which is not a function of DuckDB")
    # With one argument, the age is that of today.
    is_age_now = name.lower() == "age" and len(_arguments(node)) == 1
    if is_age_now or name.lower() in _CLOCKS:
        raise _refusal(sql, f"calls {name}, which does not depend on the row alone")
    # A scalar may share its name with a table function or a pragma, which no expression can call.
    per_row = [each for each in kinds if each[0] in ("scalar", "macro")]
    if not per_row or any(kind in ("aggregate", "window") for kind, *_ in kinds):
        raise _refusal(sql, f"calls {name}, which looks at other rows or makes new ones")
    for kind, stability, parameters, definition in per_row:
        if kind == "scalar" and stability != "CONSISTENT":
            raise _refusal(sql, f"calls {name}, which does not depend on the row alone")
        if kind == "macro":
            _check_macro(name, parameters, definition, sql)


def _arguments(node: Any) -> list[Any]:
    """The arguments of a call, under the name that they have in this version of DuckDB."""
    found: list[Any] = node["arguments"] if "arguments" in node else node["children"]
    return found


def _check_macro(name: str, parameters: list[str], definition: str, sql: str) -> None:
    """A macro is pure if it names its parameters alone and calls what is pure."""
    try:
        others = set(_columns(_tree(definition), definition, frozenset()))
    except UsageError as error:
        raise _refusal(sql, f"calls {name}, which is {definition!r} to DuckDB") from error
    if {other.lower() for other in others} - {parameter.lower() for parameter in parameters}:
        raise _refusal(sql, f"calls {name}, which does not depend on the row alone")
