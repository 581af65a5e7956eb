"""Columns that the steps of a recipe ask for: read beside the text, with the types of the file."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyarrow import ipc
from support.source_files import blocks_of, describe, read_all

from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.pipeline.launch import describe_job
from fineshards.shards.job.job import Job
from fineshards.shards.job.settings import Columns
from fineshards.sources.reading import read_block


def asking(*names: str, **more: Any) -> Columns:
    return Columns("text", "id", False, others=names, **more)


VALUES = {
    "score": pa.array([0.5, None, 1.0]),
    "day": pa.array([datetime.date(2026, 1, 2), None, None]),
    "tags": pa.array([["a", "ä"], [], None]),
    "meta": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
    "words": pa.array(["x", "y", "x"]).dictionary_encode(),
    "view": pa.array(["x", None, "z"]).cast(pa.string_view()),
    "raw": pa.array([b"\xff", b"", None]),
    "url": pa.array(["https://a.example/1", None, "https://b.example/"]),
    "a.b": pa.array([1, 2, 3], pa.uint8()),
}
TEXTS = ["one", None, "three"]


def test_columns_of_parquet_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS} | VALUES), path)
    columns = asking(*VALUES)
    read = read_all(path, columns=columns)
    assert read.rows == [(index, text, None) for index, text in enumerate(TEXTS)]
    assert read.others == {name: values.to_pylist() for name, values in VALUES.items()}
    (batch,) = read_block(describe(path), columns, blocks_of(path, columns=columns)[0])
    kinds = {name: values.type for name, values in VALUES.items()} | {"view": pa.large_string()}
    assert {name: values.type for name, values in batch.others.items()} == kinds
    assert not batch.others_are_json
    kept = batch.filter(np.array([True, False, True]), [])
    assert kept.others == {name: batch.others[name].take([0, 2]) for name in VALUES}
    assert batch.with_text().others == kept.others


def test_a_column_may_be_asked_for_twice(tmp_path: Path) -> None:
    """As the text, the id, a label or the split key, and by a step."""
    rows = {"text": ["a", None], "id": [1, 2], "dump": ["x", "y"], "url": ["u", "v"]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    lines = [json.dumps({name: values[i] for name, values in rows.items()}) for i in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    columns = replace(asking(*rows, split="url"), id_required=True)
    for name in ("a.parquet", "a.jsonl"):
        read = read_all(tmp_path / name, columns=columns)
        assert read.rows == [(0, "a", "1"), (1, None, "2")]
        assert read.labels["dump"] == ["x", "y"]
        found = read.others
        if name == "a.jsonl":
            found = {
                key: [value and json.loads(value) for value in values]
                for key, values in found.items()
            }
        assert found == rows


def test_values_of_json_lines_become_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    deep = "[" * 600 + "]" * 600
    path.write_text(
        '{"text":"a","x":0.5,"y":{"b":[1,"ä"]},"id":12345678901234567890}\n'
        '{"text":"b","x":null,"y":[123456789012345678901234567890,1e30]}\n'
        f'{{"text":"c","x":"1\\n","y":{deep}}}\n'
        '{"text":"d","x":true,"y":99999999999999999999,"dump":{"a":1}}\n'
    )
    read = read_all(path, columns=asking("x", "y", "id", "dump"))
    assert read.bad == []
    assert read.others["x"] == ["0.5", None, '"1\\n"', "true"]
    assert read.others["y"] == [
        '{"b":[1,"ä"]}',
        "[123456789012345678901234567890,1e30]",
        deep,
        "99999999999999999999",
    ]
    assert read.others["id"] == ["12345678901234567890", None, None, None]
    assert read.others["dump"] == [None, None, None, '{"a":1}']
    assert [id_ for _, _, id_ in read.rows] == ["12345678901234567890", None, None, None]


def test_a_missing_column_is_an_error_that_lists_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "url": ["b"]}), path)
    with pytest.raises(
        InputError, match=r"a\.parquet has no column 'score'; its columns are text, url\. A step"
    ):
        blocks_of(path, columns=asking("url", "score"))
    pq.write_table(pa.Table.from_arrays([["a"], ["b"], ["c"]], names=["text", "x", "x"]), path)
    with pytest.raises(InputError, match=r"has several columns 'x'"):
        blocks_of(path, columns=asking("x"))


def test_a_value_that_is_not_utf8_makes_a_row_bad_if_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pa.array([b"x", b"\xff", None], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    nested = pa.ListArray.from_arrays([0, 0, 1, 2], column.slice(1))
    pq.write_table(pa.table({"text": ["a", "b", "c"], "x": column, "y": nested}), path)
    for name in ("x", "y"):
        read = read_all(path, columns=asking(name))
        assert [text for _, text, _ in read.rows] == ["a", "c"]
        assert [(bad.row, bad.place, bad.reason) for bad in read.bad] == [
            (1, "", f"its {name!r} is not valid UTF-8")
        ]


def test_columns_are_in_the_record_of_a_job_only_if_there_are_some(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    job, _ = describe_job(BuildConfig(input=path, output=tmp_path / "out"))
    assert b'"others"' not in job.to_bytes()
    asked = replace(
        job, settings=replace(job.settings, columns=replace(job.settings.columns, others=("url",)))
    )
    for each in (job, asked):
        assert Job.parse(each.to_bytes(), "job.json") == each
    assert job.fingerprint() != asked.fingerprint()
    assert asked.differences(job) == ["columns for the recipe: was ('url',), now ()"]


def write(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return path


BYTES = (
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)),
    pa.dictionary(pa.int32(), pa.binary()),
)


@pytest.mark.parametrize("kind", BYTES, ids=str)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_bytes_are_text_if_they_are_utf8(tmp_path: Path, kind: pa.DataType, ending: str) -> None:
    values = pa.array([b"ab", "ä".encode(), b"\xff\xfe", None], pa.binary())
    if pa.types.is_dictionary(kind):
        values = values.dictionary_encode()
    elif kind != pa.binary():
        values = values.cast(kind)
    path = write(tmp_path / f"a.{ending}", pa.table({"text": values, "key": values}))
    read = read_all(path, columns=Columns("text", "key", True, split="key"))
    assert read.rows == [(0, "ab", "ab"), (1, "ä", "ä"), (3, None, None)]
    assert [(bad.row, bad.reason) for bad in read.bad] == [(2, "its 'text' is not valid UTF-8")]


def test_conversations_in_bytes_are_their_json(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "ä"}]
    column = pa.array([json.dumps(said).encode(), b"\xff"], pa.binary())
    path = write(tmp_path / "a.parquet", pa.table({"messages": column}))
    read = read_all(path, columns=Columns("messages", "id", False, conversations=True))
    assert [json.loads(text)["messages"] for _, text, _ in read.rows if text] == [said]
    assert [bad.reason for bad in read.bad] == ["its conversation is not valid UTF-8"]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_conversations_under_a_path_come_before_a_pair_beside_it(
    tmp_path: Path, ending: str
) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"data": {"messages": said}, "prompt": "raw", "completion": "raw"}]
    rows += [rows[0] | {"prompt": None}, rows[0] | {"data": None}]
    path = write(tmp_path / f"a.{ending}", pa.Table.from_pylist(rows))
    read = read_all(path, columns=Columns("data.messages", "id", False, conversations=True))
    pair = [{"role": role, "content": "raw"} for role in ("user", "assistant")]
    found = [json.loads(text)["messages"] for _, text, _ in read.rows if text]
    assert (found, read.bad) == ([said, said, pair], [])


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_column_of_nulls_has_no_texts(tmp_path: Path, ending: str) -> None:
    nulls = pa.table(dict.fromkeys(("text", "id", "dump", "x"), pa.nulls(2)))
    path = write(tmp_path / f"a.{ending}", nulls)
    for columns in (asking("x", split="x"), asking("x", template="{text} {id}")):
        read = read_all(path, columns=columns)
        assert read.rows == [(0, None, None), (1, None, None)]
        assert (read.others, read.labels) == ({"x": [None] * 2}, {"dump": [None] * 2})


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
def test_a_path_with_dots_leads_into_structs(tmp_path: Path, ending: str) -> None:
    within = [{"text": "a", "more": {"lang": "de", "n": 7}}, {"text": None, "more": {"lang": "x"}}]
    table = pa.table({"meta": within, "a.b": ["1", "2"], "a": [{"b": "no"}] * 2})
    path = write(tmp_path / f"a.{ending}", table)
    asked = ("meta.more.lang", "a.b", "meta.more")
    columns = Columns("meta.text", "meta.more.n", True, split="meta.more.lang", others=asked)
    read = read_all(path, columns=columns)
    assert read.rows == [(0, "a", "7"), (1, None, None)]
    others = read.others
    if ending == "jsonl":
        others = {name: [json.loads(value) for value in of] for name, of in others.items()}
    more = [{"lang": "de", "n": 7}, {"lang": "x", "n": None}]
    assert others == {"meta.more.lang": ["de", "x"], "a.b": ["1", "2"], "meta.more": more}
    with pytest.raises(InputError, match=r"no (column|field) 'meta\.title'"):
        blocks_of(path, columns=Columns("meta.title", "id", False))
