"""Where: SQL decides about a row by that row alone, or says in one sentence why it cannot."""

import json
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineshards.curation.batch import Batch
from fineshards.curation.steps.where import Where, connection
from fineshards.errors import InputError, UsageError


def batch(columns: dict[str, Any], as_json: bool = False) -> Batch:
    """Documents t0, t1, … of file 3, in every second row."""
    arrays = {name: pa.array(values) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    texts = pa.array([f"t{row}" for row in range(rows)], pa.large_string())
    return Batch(3, np.arange(rows) * 2, texts, arrays, as_json)


def json_batch(column: list[Any]) -> Batch:
    texts = [None if value is ... else json.dumps(value) for value in column]
    return batch({"v": pa.array(texts, pa.string())}, as_json=True)


def kept(sql: str, documents: Batch) -> list[bool]:
    reasons = Where(sql).apply(documents).reasons
    assert reasons is not None
    assert set(reasons) <= {None, "where"}
    return [reason is None for reason in reasons]


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("language_score > 0.9", ("language_score",)),
        ("a.b = 'x' AND \"a b\".c IN (1, 2)", ("a b.c", "a.b")),
        ("length(text) > 5 AND text <> ''", ()),
        ("list_filter(l, lambda x: x > y) = []", ("l", "y")),
        ("[x FOR x IN l IF x > 1] = []", ("l",)),
        ("user = 'ann' -- a column, not a function", ("user",)),
        ("meta->>'x' = 'y'", ("meta",)),
        ("date_part('year', d) > 2000 AND split_part(u, '/', 3) LIKE '%.org'", ("d", "u")),
        (
            "CASE WHEN a BETWEEN 1 AND 2 THEN b ELSE NOT c END OR coalesce(d, 'x') IS NULL",
            (*"abcd",),
        ),
        ("s COLLATE NOCASE = 'a' AND TRY_CAST(n AS INTEGER) // 2 > 0 AND l[1:2] = [1]", (*"lns",)),
        ("if(a > 1, TRUE, FALSE) AND nullif(b, '') IS NOT NULL AND c SIMILAR TO 'x+'", (*"abc",)),
        ("age(d, e) > INTERVAL 1 YEAR", ("d", "e")),
        ("TRUE", ()),
    ],
)
def test_only_the_named_columns_are_read(sql: str, columns: tuple[str, ...]) -> None:
    assert Where(sql).columns == columns


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("random() < 0.5", "calls random, which does not depend on the row alone"),
        ("now() > d", "calls now,"),
        ("d < current_timestamp", "names current_timestamp, which does not depend on the row"),
        ("d = current_date", "names current_date"),
        ("today() = d", "calls today"),
        ("ago(i) > d", "calls ago"),
        ("age(d) > INTERVAL 1 YEAR", "calls age, which does not depend on the row alone"),
        ("(d::DATE).Age() > INTERVAL 1 YEAR", "calls age, which does not depend"),
        ("current_localtime() > t", "calls current_localtime, which does not"),
        ("current_localtimestamp() > d", "calls current_localtimestamp, which does not"),
        ("uuid() = a", "calls uuid"),
        ("nextval('s') > 1", "calls nextval"),
        ("getvariable('x') = a", "calls getvariable"),
        ("current_setting('threads') = 1", "calls current_setting"),
        ("sum(a) > 1", "calls sum, which looks at other rows"),
        ("count(*) > 1", "calls count_star, which looks at other rows"),
        ("unnest(l) = 1", "calls unnest, which looks at other rows or makes new ones"),
        ("row_number() OVER () > 1", "has a window function, which looks at other rows"),
        ("lag(a) OVER () > 1", "has a window function"),
        ("a IN (SELECT 1)", "has a subquery"),
        ("EXISTS (FROM 'file.csv')", "has a subquery"),
        ("read_text('/etc/passwd') = a", "calls read_text"),
        ("COLUMNS(*) > 1", "has a star"),
        ("a > $1", "has a parameter"),
        ("#1 > 1", "has the position of a column"),
        ("text.length() > 1", "calls text.length; write length(text)"),
        ("a.b.upper() = 'A'", "calls a.b.upper; write upper(a.b)"),
        ("main.length(a) > 1", "calls main.length; write length(main), or length(…) if that is a"),
        ("nonsense(a)", "calls nonsense, which is not a function of DuckDB"),
        ("a >", "DuckDB cannot read: syntax error"),
        ("'open", "DuckDB cannot read: unterminated"),
        ("a > 1; DROP TABLE t", "DuckDB cannot read: syntax error"),
        ("a) FROM t; SELECT (1", "is not a single expression"),
        ("a), (b", "is not a single expression"),
        ("a) FROM t WHERE (b", "is not a single expression"),
        ("a) ORDER BY (b", "is not a single expression"),
        ("TRUE) UNION SELECT (TRUE", "is not a single expression"),
        ("TRUE) EXCEPT ALL SELECT (TRUE", "is not a single expression"),
        ("TRUE) INTERSECT VALUES (TRUE", "is not a single expression"),
        ("a > 1 AND A < 3", "names 'A' and 'a', which are one to SQL"),
        ("  ", "is empty"),
    ],
)
def test_what_is_no_function_of_the_row_is_refused_by_name(sql: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        Where(sql)
    assert str(error.value).startswith(f"where: sql is {sql!r}, which ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_false_and_null_drop_a_row() -> None:
    documents = batch({"flag": [True, False, None]})
    assert kept("flag", documents) == [True, False, False]
    assert kept("flag IS NULL", documents) == [False, False, True]
    assert kept("TRUE", documents) == [True] * 3


def test_functions_that_share_their_name_with_a_table_function() -> None:
    documents = batch({"v": ["abab", "ab"]})
    assert kept("v = repeat('ab', 2)", documents) == [True, False]
    assert kept("len(range(length(v))) = 2", documents) == [False, True]
    assert kept("version() <> v", documents) == [True, True]


def test_text_is_the_document_whatever_the_case() -> None:
    documents = batch({"text_2": ["t0", "t1", "x"]})
    assert kept("text = text_2", documents) == [True, True, False]
    assert kept("TEXT = 't2'", documents) == [False, False, True]


@pytest.mark.parametrize(
    ("values", "sql", "expected"),
    [
        (pa.array(["en", "de"]).dictionary_encode(), "v = 'en'", [True, False]),
        (pa.array([{"a": 1}, None]), "v['a'] = 1", [True, False]),
        (pa.array([[1, 2], []]), "len(v) = 0", [False, True]),
        (pa.array([1, 2], pa.decimal128(5, 2)), "v > 1.5", [False, True]),
        (pa.array([0, 3600], pa.timestamp("s", "Asia/Tokyo")), "hour(v) = 1", [False, True]),
        (pa.array([b"a", b"b"]), "v = 'a'::BLOB", [True, False]),
        (pa.array([1.5, float("nan")]), "v IS NULL", [False, True]),
        (pa.array(["a", "b"], pa.string_view()), "v = 'a'", [True, False]),
    ],
)
def test_types_of_columns(values: pa.Array, sql: str, expected: list[bool]) -> None:
    assert kept(sql, batch({"v": values})) == expected


def test_a_value_that_cannot_be_converted_names_its_row() -> None:
    values = [str(number) for number in range(5000)]
    values[3210] = "many"
    with pytest.raises(InputError, match=r"file 3 of the input, row 6420: .*'many'"):
        Where("v::INTEGER >= 0").apply(batch({"v": values}))


def test_what_is_no_boolean_is_refused_with_its_type() -> None:
    with pytest.raises(UsageError, match="which gives BIGINT, expected BOOLEAN"):
        Where("v").apply(batch({"v": [1, 2]}))
    with pytest.raises(UsageError, match=r"DuckDB cannot evaluate: Binder Error: .*VARCHAR"):
        Where("v > 3").apply(batch({"v": ["a"]}))


def test_json_values_have_types_of_their_own() -> None:
    documents = json_batch([1, 2.5, "x", True, None, ..., [1], {"a": 2}, 10**20, 10**50, -3])
    kinds = ["BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", "JSON", "DECIMAL(38,0)"]
    rows = {0: 0, 1: 1, 2: 2, 3: 3, 6: 4, 7: 4, 8: 5, 9: 1, 10: 0}
    for kind, name in enumerate(kinds):
        expected = [rows.get(row) == kind for row in range(11)]
        assert kept(f"typeof(v) = '{name}'", documents) == expected
    assert kept("v IS NULL", documents) == [row in (4, 5) for row in range(11)]


def test_json_rows_that_an_expression_does_not_fit_are_named() -> None:
    assert kept("v > 1", json_batch([0, 2, None, 1.5, ..., 10**30])) == [0, 1, 0, 1, 0, 1]
    with pytest.raises(InputError, match=r"row 2: .*Binder Error: Cannot compare"):
        Where("v > 1").apply(json_batch([0, "x"]))
    with pytest.raises(InputError, match=r"row 4: .*gives VARCHAR here, expected BOOLEAN"):
        Where("v").apply(json_batch([True, None, "yes"]))
    assert kept("v", json_batch([True, None, False])) == [True, False, False]
    assert kept("v->>'a' = '1'", json_batch([{"a": 1}, {"a": 2}, {}])) == [True, False, False]
    assert kept("v[0]::INT = 7", json_batch([[7], [8]])) == [True, False]
    deep = pa.array(["[" * 1000 + "]" * 1000], pa.string())
    assert kept("json_array_length(v) = 1", batch({"v": deep}, as_json=True)) == [True]


_COMPARED: list[tuple[str, Callable[[Any], bool]]] = [
    ("typeof(v) IN ('BIGINT', 'DOUBLE') AND TRY_CAST(v AS DOUBLE) > 10",
     lambda v: type(v) in (int, float) and v > 10),
    ("typeof(v) = 'VARCHAR' AND length(v::VARCHAR) > 2",
     lambda v: isinstance(v, str) and len(v) > 2),
    ("coalesce(TRY_CAST(v AS VARCHAR), '') = 'true'", lambda v: v is True or v == "true"),
]  # fmt: skip

_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(-100, 100),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    st.lists(st.integers(0, 9), max_size=2),
)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.lists(_VALUES, min_size=1, max_size=12))
def test_a_json_rows_verdict_does_not_depend_on_other_rows(values: list[Any]) -> None:
    documents = json_batch(values)
    for sql, expected in _COMPARED:
        together = kept(sql, documents)
        alone = [kept(sql, documents.only(index))[0] for index in range(len(values))]
        assert together == alone == [expected(value) for value in values]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=1, max_size=5000))
def test_typed_rows_are_judged_as_python_would(values: list[int | None]) -> None:
    documents = batch({"v": pa.array(values, pa.int64())})
    expected = [value is not None and value % 7 > 3 for value in values]
    assert kept("v % 7 > 3", documents) == expected


def test_there_are_no_files_and_no_settings() -> None:
    for statement in ("SELECT * FROM read_text('/etc/hostname')", "SET threads = 4",
                      "INSTALL httpfs", "COPY (SELECT 1) TO 'x.csv'"):  # fmt: skip
        with pytest.raises(Exception, match=r"(?i)permission|locked|disabled"):
            connection().execute(statement)


def test_steps_are_pickled_and_used_by_threads() -> None:
    step = pickle.loads(pickle.dumps(Where("v > 500")))
    documents = batch({"v": list(range(1000))})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kept(step.sql, documents), range(16)))
    assert found == [[number > 500 for number in range(1000)]] * 16
    assert list(step.pins()) == ["duckdb"]


def test_a_process_survives_the_fork_of_one_that_has_judged() -> None:
    step = Where("length(text) > 1")
    assert step.apply(Batch.of_texts(["a", "bc"])).reasons == ["where", None]
    child = os.fork()
    if not child:
        again = step.apply(Batch.of_texts(["a", "bc"])).reasons
        os._exit(0 if again == ["where", None] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_value_that_is_not_a_number_keeps_no_row() -> None:
    documents = batch({"v": [0.7, float("nan"), None, float("inf"), 0.1]})
    assert kept("v > 0.5", documents) == [True, False, False, True, False]
    assert kept("v <> 0.7", documents) == [False, False, False, True, True]
    assert kept("v NOT BETWEEN 0 AND 1", documents) == [False, False, False, True, False]


def test_a_path_with_dots_is_a_field_within_an_object() -> None:
    texts = [json.dumps(value) for value in ("de", 7, {"x": 1}, None, "en")]
    documents = batch({"m.l": pa.array(texts), "m.n.k": pa.array(["1"] * 5)}, as_json=True)
    assert kept("m.l = 'de' AND m.n.k = 1", documents.only(0)) == [True]
    assert kept("\"m.l\" = 'de'", documents.only(0)) == [True]
    assert kept("m.l IS NULL", documents) == [False, False, False, True, False]
    assert kept("m.l->>'x' = '1'", documents.only(2)) == [True]
    typed = batch({"m.l": ["de", None, "en"], "m.n.k": [1, 1, 2]})
    assert kept("m.l = 'de' OR m.n.k = 2", typed) == [True, False, True]


def test_an_object_and_its_field_may_both_be_named() -> None:
    objects = [json.dumps({"l": "de"}), None, json.dumps({"l": "en", "x": 1})]
    fields = [json.dumps("de"), None, json.dumps("en")]
    documents = batch({"m": pa.array(objects), "m.l": pa.array(fields)}, as_json=True)
    assert kept("m.l = 'de' AND m IS NOT NULL", documents) == [True, False, False]
    assert kept("m.l = 'en' AND m->>'x' = '1' -- both", documents) == [False, False, True]
    typed = batch({"m": [{"l": [1, 2]}, None], "m.l": [[1, 2], None]})
    assert kept("len(list_filter(m.l, lambda l: l > 1)) = 1 AND m['l'] = m.l", typed) == [
        True,
        False,
    ]


def test_an_error_about_types_names_the_file_and_its_types() -> None:
    documents = batch({"v": ["a"], "w": [1]})
    documents.path = "b.parquet"
    with pytest.raises(UsageError, match=r"In b\.parquet it reads v string, w int64\.$"):
        kept("v > 1 AND w > 1", documents)
