"""Texts of several columns: as if the texts had been in one column, for every reader."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from support.build_here import build_here
from support.curated import write_recipe
from support.growing import append, build
from support.oracle import shards_in
from support.source_files import describe, read_all

import fineshards
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.settings import Columns
from fineshards.sources.reading import discover_blocks
from fineshards.storage.open import open_storage

TEMPLATE = "{{{title}}}:\t{title}\n\n{body}"
SCHEMA = pa.schema([(name, pa.string()) for name in ("title", "body", "id", "url")])
Row = dict[str, Any]


def made_up_rows(first: int, count: int) -> list[Row]:
    """Rows where each of two columns is a text, empty or null, in all nine combinations."""
    titles, bodies = ["Über {braces} \\n", "", None], ["a body\n of words", "", None]
    return [
        {
            "title": titles[number % 3] and f"{titles[number % 3]} {number}",
            "body": bodies[number // 3 % 3] and f"{bodies[number // 3 % 3]} {number % 50}" * 9,
            "id": f"n{number}",
            "url": f"https://host{number % 4}.example/",
        }
        for number in range(first, first + count)
    ]


def with_text(row: Row) -> Row:
    """The row with the text of TEMPLATE, made without it."""
    title, body = row["title"], row["body"]
    whole = "{" + (title or "") + "}:\t" + (title or "") + "\n\n" + (body or "")
    return {"text": None if title is None and body is None else whole} | row


def write_parquet(path: Path, rows: list[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=11)


def write_jsonl(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_jsonl_gz(path: Path, rows: list[Row]) -> None:
    """Without some fields that are null, except in the first line, where all must be."""
    kept = [{k: v for k, v in row.items() if k == "body" or v is not None} for row in rows]
    lines = [json.dumps(row) + "\n" for row in (rows[0], *kept[1:])]
    path.write_bytes(gzip.compress("".join(lines).encode()))


def write_csv(path: Path, rows: list[Row]) -> None:
    """An empty value is null unless it is quoted."""
    quoted = [["" if row[n] is None else f'"{row[n]}"' for n in SCHEMA.names] for row in rows]
    path.write_text("".join(",".join(row) + "\n" for row in [SCHEMA.names, *quoted]))


def write_arrow(path: Path, rows: list[Row]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    with ipc.new_file(path, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=11)


def write_stream(path: Path, rows: list[Row]) -> None:
    with ipc.new_stream(path, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA), max_chunksize=11)


FORMATS: dict[str, Callable[[Path, list[Row]], None]] = {
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "jsonl.gz": write_jsonl_gz,
    "arrow": write_arrow,
    "feather": write_stream,
    "csv": write_csv,
}
FLAGS = ["--shard_tokens=300", "--test_fraction=0.2", "--split_key=id", "--block_bytes=1"]
ESCAPED = "--text_template={{{title}}}:\\t{title}\\n\\n{body}"


def documents_of(folder: Path) -> list[list[Row]]:
    tables = sorted((folder / "metadata/documents").glob("*.parquet"))
    return [pq.read_table(path).drop_columns(["file"]).to_pylist() for path in tables]


@pytest.mark.parametrize("ending", FORMATS)
def test_the_shards_are_those_of_texts_in_one_column(tmp_path: Path, ending: str) -> None:
    parts = [made_up_rows(0, 60), made_up_rows(60, 30)]
    for number, rows in enumerate(parts):
        FORMATS[ending](tmp_path / f"{number}.{ending}", rows)
        write_jsonl(tmp_path / f"plain-{number}.jsonl", [with_text(row) for row in rows])
    build(tmp_path / "plain", tmp_path / "plain-0.jsonl", *FLAGS)
    append(tmp_path / "plain", tmp_path / "plain-1.jsonl")
    grown = tmp_path / "grown"
    build(grown, tmp_path / f"0.{ending}", *FLAGS, ESCAPED)
    append(grown, tmp_path / f"1.{ending}")
    assert shards_in(grown) == shards_in(tmp_path / "plain")
    assert documents_of(grown) == documents_of(tmp_path / "plain")
    totals = [
        Manifest.load_finished(open_storage(str(tmp_path / name))).totals | {"blocks": 0}
        for name in ("grown", "plain")
    ]
    assert totals[0] == totals[1]
    assert totals[0]["nulls"] == 10
    redacted = fineshards.redact(grown, ids=["n0", "n81"])
    assert redacted.documents == 2
    verdict = fineshards.verify(grown, sample=100)
    assert (verdict.problems, verdict.sampled) == ([], 78)


@pytest.mark.curation
def test_steps_see_the_whole_text_and_its_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = made_up_rows(0, 90)
    write_parquet(tmp_path / "a.parquet", rows)
    write_jsonl(tmp_path / "plain.jsonl", [with_text(row) for row in rows])
    steps = [("where", {"sql": "title <> '' AND text LIKE '{%}:%'"}), ("exact", {"by": "text"})]
    plain, recipe = (write_recipe(tmp_path / name, steps) for name in ("plain.toml", "own.toml"))
    recipe.write_text(f"[build]\ntext_template = {json.dumps(TEMPLATE)}\n{recipe.read_text()}")
    build(tmp_path / "out", tmp_path / "a.parquet", *FLAGS, f"--recipe={recipe}")
    build(tmp_path / "plain", tmp_path / "plain.jsonl", *FLAGS, f"--recipe={plain}")
    assert shards_in(tmp_path / "out") == shards_in(tmp_path / "plain")
    assert fineshards.verify(tmp_path / "out", sample=100).problems == []
    capsys.readouterr()
    assert main(["recipe", "check", str(recipe), f"--input={tmp_path}/a.parquet", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert main(["estimate", f"--input={tmp_path}/a.parquet", ESCAPED, "--json"]) == 0
    estimated = json.loads(capsys.readouterr().out)
    (given,) = [each["documents"] for each in checked["stats"]["counts"] if each["what"] == "input"]
    assert estimated["documents"] == given == 80


def test_only_the_named_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = made_up_rows(0, 40)
    table = pa.Table.from_pylist(rows, SCHEMA).append_column("text", pa.array(["no"] * 40))
    pq.write_table(table, path, compression="none", use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(0).column(SCHEMA.names.index("url") + 1)
    content = bytearray(path.read_bytes())
    begin, size = chunk.data_page_offset, chunk.total_compressed_size
    content[begin : begin + size] = b"\xff" * size
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be decoded"):
        read_all(path)
    read = read_all(path, columns=Columns("text", "id", False, template=TEMPLATE))
    assert read.texts == [with_text(row)["text"] for row in rows]


def test_numbers_and_booleans_are_as_json_writes_them(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {
        "whole": [-7, None, 2**63 - 1],
        "float": [0.1, 1e-7, 1e22],
        "bool": [True, None, False],
        "word": ["w", None, "ü"],
    }
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    table = pa.table(values | {"word": pa.array(values["word"]).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    with ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    write_jsonl(tmp_path / "a.jsonl", rows)
    columns = Columns("text", "id", False, template="{whole} {float} {bool} {word}")
    expected = ["-7 0.1 true w", " 1e-07  ", f"{2**63 - 1} 1e+22 false ü"]
    for name in ("a.parquet", "a.arrow", "a.jsonl"):
        read = read_all(tmp_path / name, columns=columns)
        assert read.texts == expected, name
    (tmp_path / "a.jsonl").write_text(f'{{"whole": {10**30}}}\n')
    read = read_all(tmp_path / "a.jsonl", columns=Columns("text", "id", False, template="{whole}"))
    assert read.rows == [(0, str(10**30), None)], "beyond 64 bits"


def test_a_text_file_has_a_text_and_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    columns = Columns("text", "id", False, template="{id}: {text}")
    assert read_all(path, columns=columns).rows == [(0, f"{path}: text", str(path))]


@pytest.mark.parametrize(
    ("template", "name", "reason"),
    [
        ("{titel} {body}", "a.parquet", "has no column 'titel'; .* title, .* --text_template"),
        (
            "{titel} {body}",
            "a.jsonl",
            "its first object has no field 'titel'; .* title, .*--text_template",
        ),
        ("{tags}", "a.parquet", "'tags' has type list<.*>, expected strings, .*--text_template"),
        ("{title}", "a.txt", "has no column 'title'; its columns are text, id"),
    ],
)
def test_a_column_that_cannot_be_part_of_a_text_is_named(
    tmp_path: Path, template: str, name: str, reason: str
) -> None:
    rows = [{"title": "t", "body": "b", "tags": ["x"]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.txt").write_text("text")
    columns = Columns("text", "id", False, template=template)
    with pytest.raises(InputError, match=reason):
        discover_blocks(describe(tmp_path / name), columns, 1)


def test_lines_without_any_named_field_and_lists_are_bad_rows(tmp_path: Path) -> None:
    rows = [{"title": "t", "tags": None}, {"title": "t"}, {"other": 1}, {"title": 1, "tags": []}]
    write_jsonl(tmp_path / "a.jsonl", rows)
    columns = Columns("text", "id", False, template="{title}{tags}")
    read = read_all(tmp_path / "a.jsonl", columns=columns)
    assert read.rows == [(0, "t", None), (1, "t", None)]
    assert [(bad.row, bad.reason) for bad in read.bad] == [
        (2, "has no field 'title' or 'tags' (an object of 1 field)"),
        (3, "its 'tags' is an array, expected a string, a number or a boolean"),
    ]


def test_an_invalid_column_makes_a_bad_row(tmp_path: Path) -> None:
    """Also where two halves of a character would be a valid text."""
    halves = pa.array([b"\xc3", b"a"]), pa.array([b"\xa4", b"b"])
    one, other = (
        pa.Array.from_buffers(pa.string(), 2, half.cast(pa.binary()).buffers()) for half in halves
    )
    pq.write_table(pa.table({"one": one, "other": other}), tmp_path / "a.parquet")
    columns = Columns("text", "id", False, template="{one}{other}")
    read = read_all(tmp_path / "a.parquet", columns=columns)
    assert read.rows == [(1, "ab", None)]
    assert [(bad.row, bad.reason) for bad in read.bad] == [(0, "its 'one' is not valid UTF-8")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"text_template": "{title"}, "the brace at character 0 does not belong"),
        ({"text_template": "title} {a}"}, "the brace at character 5 does not belong"),
        ({"text_template": "a {} {b}"}, "the brace at character 2 does not belong"),
        ({"text_template": "{{title}}"}, "names no column"),
        ({"text_template": ""}, "names no column"),
        ({"text_template": "{a}", "text_column": "b"}, "exclude each other"),
        ({"text_template": "{a}", "append": True}, "--text_template is the dataset's own"),
    ],
)
def test_templates_that_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        BuildConfig(input="a", output="out", **options)


def test_the_job_has_the_template_only_where_it_is_used(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options in {"plain": {}, "same": {"text_template": "{text}"}}.items():
        build_here(input=small, output=tmp_path / name, **options)
    assert shards_in(tmp_path / "plain") == shards_in(tmp_path / "same")
    records = [
        json.loads((tmp_path / name / "metadata/job.json").read_text())["settings"]["columns"]
        for name in ("plain", "same")
    ]
    assert records == [records[0], records[0] | {"template": "{text}"}]
    assert "template" not in records[0]
    given = ["build", f"--input={small}", f"--output={tmp_path / 'same'}"]
    assert main([*given, "--text-template={id} {text}"]) == 2
    assert "--text_template: was '{text}', now '{id} {text}'" in capsys.readouterr().err
    assert main([*given, "--text-template={id}\\r{text}"]) == 2
    assert "has \\r, not one of \\n, \\t, \\\\" in capsys.readouterr().err
