"""The hash of rows: it follows from the values alone, and from each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from fineshards.shards.job.records import BadRow, Block, ReadRows, SourceFile
from fineshards.sources.row_hash import RowHash
from fineshards.sources.rows import Rows

FILE = SourceFile(0, "/in/a.parquet", 10, "mtime:1", "parquet", "none")
COUNT = 3000
BLOCK = Block(0, 0, 1, 0, 1, 0, 0)


def made_up() -> Rows:
    texts = [None if n % 7 == 0 else f"text {n} " * (n % 5) for n in range(COUNT)]
    return Rows(
        numbers=np.arange(COUNT) + np.arange(COUNT) // 100,
        texts=pa.array(texts, pa.large_string()),
        ids=pa.array([None if n % 3 == 0 else f"id{n}" for n in range(COUNT)]),
        split=pa.nulls(COUNT, pa.string()),
        labels={"dump": pa.array([f"CC-{n // 1000}" for n in range(COUNT)])},
        bad=[BadRow(100, "line 101, ", "not JSON")],
        others={
            "score": pa.array([n / 3 for n in range(COUNT)]),
            "tags": pa.array([[str(n)] * (n % 3) for n in range(COUNT)]),
            "flag": pa.array([n % 2 == 0 for n in range(COUNT)]),
            "day": pa.array(range(COUNT), pa.date32()),
            "hour": pa.array([n % 24 for n in range(COUNT)], pa.time32("s")),
        },
    )


def cut(rows: Rows, *borders: int) -> list[Rows]:
    """Rows as record batches that end at these numbers of rows."""
    positions = np.arange(len(rows.numbers))
    edges = [0, *borders, len(positions)]
    return [
        rows.filter((positions >= a) & (positions < b), rows.bad if a == 0 else [])
        for a, b in pairwise(edges)
    ]


def read(*batches: Rows) -> ReadRows:
    found = RowHash()
    assert [*found.through(batches)] == [*batches]
    return found.read(FILE)


def test_how_arrow_holds_the_values_does_not_matter() -> None:
    rows = made_up()
    expected = read(rows)
    assert len(expected.parts) == 2
    assert expected == read(*cut(rows, 1)) == read(*cut(rows, 1000, 1024, 1024, 2500))
    joined = pa.concat_arrays([rows.texts, rows.texts]).slice(COUNT)
    coded = rows.labels["dump"].dictionary_encode()
    others = rows.others | {"tags": rows.others["tags"].cast(pa.large_list(pa.string()))}
    ids = rows.ids.cast(pa.large_string())
    same = replace(rows, texts=joined, labels={"dump": coded}, others=others, ids=ids)
    assert expected == read(same)


def with_value(column: str, row: int, value: object) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        old = getattr(rows, column)
        values = old.to_pylist()
        values[row] = value
        return replace(rows, **{column: pa.array(values, old.type)})

    return change


def shifted(rows: Rows) -> Rows:
    """The last letter of a text at the beginning of the next one."""
    values = rows.texts.to_pylist()
    values[1], values[2] = values[1][:-1], values[1][-1] + values[2]
    return replace(rows, texts=pa.array(values, pa.large_string()))


@pytest.mark.parametrize(
    ("change", "first", "last"),
    [
        (with_value("texts", 1500, "text"), 1034, 2067),
        (with_value("texts", 0, ""), 0, 1033),
        (with_value("texts", 2999, None), 2068, 3028),
        (with_value("ids", 0, "x"), 0, 1033),
        (with_value("ids", 2048, None), 2068, 3028),
        (with_value("split", 5, "s"), 0, 1033),
        (shifted, 0, 1033),
        (lambda rows: replace(rows, numbers=rows.numbers + (np.arange(COUNT) > 2990)), 2068, 3029),
        (lambda rows: replace(rows, bad=[BadRow(3029, "", "not JSON")]), 0, 1033),
        (lambda rows: replace(rows, bad=[*rows.bad, BadRow(3029, "", "")]), 2068, 3029),
        (lambda rows: replace(rows, bad=[]), 0, 1033),
        (lambda rows: replace(rows, labels={"language": rows.labels["dump"]}), 0, 1033),
        (
            lambda rows: replace(rows, others={**rows.others, "score": rows.others["score"][::-1]}),
            0,
            1033,
        ),
        (lambda rows: cut(rows, 2900)[0], 2068, 2927),
        (lambda rows: cut(rows, 0)[0], 0, 100),
    ],
)
def test_each_value_matters_and_its_place_is_told(
    change: Callable[[Rows], Rows], first: int, last: int
) -> None:
    rows = made_up()
    found = RowHash()
    for _ in found.through([change(rows)]):
        pass
    before = read(rows)
    assert found.read(FILE).hash != before.hash
    assert found.differs_from(before, BLOCK) == (first, last)
    assert read(change(rows)) == found.read(FILE)
