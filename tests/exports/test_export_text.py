"""Exports of the texts: equal to what was curated, and to be built again."""

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.growing import Row, append, build, made_up_rows, write_rows
from support.oracle import files_in, shards_in
from support.tokenizer_files import save, train
from tokenizers import normalizers

import fineshards
from fineshards.errors import InputError, UsageError

ROWS = made_up_rows(1, 150)
TO = pytest.mark.parametrize("to", ["text", "text-jsonl"])
BY_TEXT = ["--shard_tokens=300", "--test_fraction=0.2"]


def read(folder: Path, split: str) -> list[Row]:
    """The rows of a split, by other programs than ours."""
    rows: list[Row] = []
    for path in sorted((folder / "data").glob(f"{split}-*")):
        if path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
        else:
            lines = subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout
            rows += map(json.loads, lines.splitlines())
    return rows


def row_of(row: int, file: str = "rows.parquet", rows: list[Row] = ROWS) -> Row:
    return {"id": rows[row]["id"], "text": rows[row]["text"], "file": file, "row": row}


def test_python_without_asserts_finds_no_damage(tmp_path: Path) -> None:
    build(tmp_path / "out", write_rows(tmp_path / "rows.parquet", ROWS))
    command = [sys.executable, "-O", "-m", "fineshards", "export", "--to=text", tmp_path / "out"]
    done = subprocess.run([*command, f"--output={tmp_path}/text"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@TO
@pytest.mark.parametrize(
    "flags",
    [BY_TEXT, ["--shard_tokens=300", "--test_shards=2"], [*BY_TEXT, "--shuffle_seed=3"]],
    ids=["by text", "one stream", "shuffled"],
)
def test_a_build_of_the_texts_has_the_same_shards(
    flags: list[str], to: str, tmp_path: Path
) -> None:
    build(tmp_path / "out", write_rows(tmp_path / "rows.parquet", ROWS), *flags)
    export = fineshards.export(tmp_path / "out", tmp_path / "text", to, tokens_per_file=700)
    found = [row for split in ("test", "train") for row in read(tmp_path / "text", split)]
    expected = [row_of(row) for row in range(len(ROWS)) if ROWS[row]["text"] is not None]
    assert sorted(found, key=lambda row: int(row["row"])) == expected
    assert sum(each["documents"] for each in export.splits.values()) == len(expected)
    assert fineshards.verify(tmp_path / "text").ok
    again = [flag for flag in flags if not flag.startswith("--shuffle")]
    build(tmp_path / "again", tmp_path / "text", *again)
    assert shards_in(tmp_path / "again") == shards_in(tmp_path / "out")


def test_texts_are_those_that_the_steps_have_made(tmp_path: Path) -> None:
    texts = ["one\n{ two }\nthree", "* * *\nfour five", "short", "six seven"]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[steps]]\nuse = "symbol_lines"\n[[steps]]\nuse = "length"\nmin_chars = 6\n')
    pq.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet")
    build(tmp_path / "out", tmp_path / "rows.parquet", f"--recipe={recipe}", "--test_shards=0")
    fineshards.export(tmp_path / "out", tmp_path / "text", "text")
    assert [row["text"] for row in read(tmp_path / "text", "train")] == [
        "one\n{ two }\nthree",
        "four five",
        "six seven",
    ]


def test_bytes_do_not_depend_on_places_or_workers(tmp_path: Path) -> None:
    found = []
    for place, workers in (("a", 1), ("b/c", 3)):
        paths = [tmp_path / place / f"x{part}/rows.jsonl" for part in (1, 2)]
        for part, path in enumerate(paths):
            write_rows(path, ROWS[part::2])
        build(tmp_path / place / "out", *paths, *BY_TEXT, f"--workers={workers}")
        text = tmp_path / place / "text"
        fineshards.export(
            tmp_path / place / "out", text, "text", columns="url,group", workers=workers
        )
        found.append(files_in(text, ("data",)))
        assert {row["file"] for row in read(text, "train")} == {"x1/rows.jsonl", "x2/rows.jsonl"}
    assert found[0] == found[1]


@TO
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_columns_of_the_sources_are_written_beside_the_text(
    kind: str, to: str, tmp_path: Path
) -> None:
    parts = [ROWS[:60], ROWS[60:]]
    paths = [write_rows(tmp_path / f"{part}.{kind}", rows) for part, rows in enumerate(parts)]
    build(tmp_path / "out", paths[0], "--shuffle_seed=1", *BY_TEXT)
    append(tmp_path / "out", paths[1])
    fineshards.export(
        tmp_path / "out", tmp_path / "x", to, columns="group,url", tokens_per_file=500
    )
    found = [row for split in ("test", "train") for row in read(tmp_path / "x", split)]
    as_written: Callable[[Any], Any] = lambda value: value  # noqa: E731
    if (kind, to) == ("jsonl", "text"):  # JSON has no types to write, so numbers are texts
        as_written = lambda value: value if value is None else str(value)  # noqa: E731
    expected = [
        row_of(number, path.name, rows) | {"group": as_written(row["group"]), "url": row["url"]}
        for path, rows in zip(paths, parts, strict=True)
        for number, row in enumerate(rows)
        if row["text"] is not None
    ]
    assert sorted(found, key=lambda row: (row["file"], row["row"])) == expected


def test_redacted_documents_are_left_out(tmp_path: Path) -> None:
    build(tmp_path / "out", write_rows(tmp_path / "rows.parquet", ROWS), *BY_TEXT)
    gone = [row["id"] for row in ROWS if row["text"] and row["id"]][3:9]
    fineshards.redact(tmp_path / "out", gone)
    export = fineshards.export(tmp_path / "out", tmp_path / "text", "text")
    left = {row["row"] for split in export.splits for row in read(tmp_path / "text", split)}
    kept = {n for n, row in enumerate(ROWS) if row["text"] is not None and row["id"] not in gone}
    assert left == kept
    assert sum(each["skipped"]["documents"] for each in export.splits.values()) == len(gone)


def test_a_tokenizer_that_changes_texts_is_refused_by_row(tmp_path: Path) -> None:
    texts = ["all is lower", "Not all Is"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet")
    tokenizer = train("gpt2", texts, 300)
    tokenizer.normalizer = normalizers.Replace("N", "n")
    flags = [f"--tokenizer={save(tokenizer, tmp_path / 'tokenizer.json')}", "--test_shards=0"]
    build(tmp_path / "out", tmp_path / "rows.parquet", *flags)
    fineshards.export(tmp_path / "out", tmp_path / "text", "text")  # the same tokens again
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("o", "oo"), normalizers.Replace("N", "n")]
    )
    flags = [f"--tokenizer={save(tokenizer, tmp_path / 'other.json')}", "--test_shards=0"]
    build(tmp_path / "other", tmp_path / "rows.parquet", *flags)
    with pytest.raises(UsageError, match=r"row 0 of rows\.parquet cannot be written as text"):
        fineshards.export(tmp_path / "other", tmp_path / "text-other", "text")


def test_what_cannot_be_is_refused_before_the_folder_is_taken(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    build(tmp_path / "out", rows, "--shard_tokens=300", "--test_shards=2")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UsageError, "--columns: --to raw has tokens only", {"to": "raw", "columns": "url"}),
        (InputError, r"has no column 'ulr'", {"columns": "ulr"}),
        (UsageError, "there is a column 'text' already", {"columns": "text"}),
        (UsageError, "there is a column 'url' already", {"columns": "url,url"}),
        (UsageError, "may cut a document in two. Use --split all", {"split": "train"}),
        (UsageError, "a redacted document has no text", {"skip": "none"}),
        (UsageError, "--to text has no tokens. Leave it out", {"dtype": "uint16"}),
        (UsageError, "--copies: --to parquet has tokens only", {"to": "parquet", "copies": True}),
        (UsageError, "--to text has no rows", {"sequence_length": 8}),
    ]
    for error, message, options in cases:
        with pytest.raises(error, match=message):
            fineshards.export(tmp_path / "out", tmp_path / "x", **{"to": "text"} | options)
        assert not (tmp_path / "x").exists()


def test_a_source_that_has_changed_since_is_named(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", ROWS)
    build(tmp_path / "out", rows, *BY_TEXT)
    write_rows(rows, ROWS[1:])
    with pytest.raises(InputError, match=r"rows\.jsonl changed since"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", columns="url")
    write_rows(rows, ROWS)
    with pytest.raises(InputError, match=r"rows\.jsonl changed since the dataset was built"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", columns="url")
    fineshards.export(tmp_path / "out", tmp_path / "text", "text")  # needs no source


@TO
def test_columns_of_every_type_are_written_or_refused_at_once(to: str, tmp_path: Path) -> None:
    day, moment = datetime.date(2026, 11, 26), datetime.datetime(2026, 11, 26, 9, 30)
    columns = {
        "day": pa.array([day, None]),
        "moment": pa.array([moment, None], pa.timestamp("ns")),
        "price": pa.array([Decimal("1.50"), None]),
        "nested": pa.array([{"a": [1, 2], "b": None}, None]),
        "raw": pa.array([b"\xff", None]),
        "long": pa.array([moment - moment, None]),
    }
    pq.write_table(pa.table({"text": ["one", "two"], **columns}), tmp_path / "rows.parquet")
    build(tmp_path / "out", tmp_path / "rows.parquet", "--test_shards=0")
    names = ["day", "moment", "price", "nested"]
    fineshards.export(tmp_path / "out", tmp_path / "x", to, columns=names)
    first, second = read(tmp_path / "x", "train")
    as_text = ("2026-11-26", "2026-11-26 09:30:00.000000000", "1.50")
    as_typed = (day, first["moment"], Decimal("1.50"))
    values = as_typed if to == "text" else as_text
    assert tuple(first[name] for name in names) == (*values, {"a": [1, 2], "b": None})
    assert {second[name] for name in names} == {None}
    for name in ("raw", "long"):
        if to == "text-jsonl":
            with pytest.raises(UsageError, match=f"--columns {name}: its type is"):
                fineshards.export(tmp_path / "out", tmp_path / "y", to, columns=name)
            assert not (tmp_path / "y").exists()


def test_types_that_differ_between_sources_are_joined_or_refused_at_once(tmp_path: Path) -> None:
    kinds = [pa.int32(), pa.int64(), pa.null()]
    for number, kind in enumerate(kinds):
        values = [None if kind == pa.null() else 1 << (20 * number + 1)]
        table = {"text": [f"text {number}"], "n": pa.array(values, kind)}
        table["x"] = pa.array([1.5] if number else ["a"])
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet")
    build(tmp_path / "out", *sorted(tmp_path.glob("*.parquet")), "--test_shards=0")
    fineshards.export(tmp_path / "out", tmp_path / "text", "text", columns="n")
    assert [row["n"] for row in read(tmp_path / "text", "train")] == [2, 1 << 21, None]
    with pytest.raises(InputError, match=r"1\.parquet: its columns have other types than those of"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", columns="x")
    assert not (tmp_path / "x").exists()


def test_a_column_that_a_later_file_lacks_is_missed_at_once(tmp_path: Path) -> None:
    for name, content in {"a": "text,k\none,1\n", "b": "text\ntwo\n"}.items():
        (tmp_path / f"{name}.csv").write_text(content)
    build(tmp_path / "out", tmp_path / "a.csv", tmp_path / "b.csv", "--test_shards=0")
    with pytest.raises(InputError, match=r"b\.csv has no column 'k'"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", columns="k")
    assert not (tmp_path / "x").exists()
    build(tmp_path / "one", tmp_path / "a.csv", "--test_shards=0")
    fineshards.export(tmp_path / "one", tmp_path / "text", "text", columns="k")
    assert [row["k"] for row in read(tmp_path / "text", "train")] == ["1"]


def test_a_field_that_no_line_has_is_refused_and_a_rare_one_is_found(tmp_path: Path) -> None:
    lines = [{"text": f"text {number}", "all_null": None} for number in range(3000)]
    lines[2999]["rare"] = "x"
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    build(tmp_path / "out", path, "--test_shards=0")
    with pytest.raises(InputError, match="no row of the sources has 'all_null', 'ulr'"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", columns="ulr,rare,all_null")
    assert not (tmp_path / "x").exists()
    fineshards.export(tmp_path / "out", tmp_path / "text", "text", columns="rare")
    assert [row["rare"] for row in read(tmp_path / "text", "train")] == [None] * 2999 + ["x"]


def bytes_read() -> int:
    """The bytes that this process has read from files, as Linux counts them."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_source_that_cannot_be_entered_is_read_on_for_the_next_file(tmp_path: Path) -> None:
    rows = made_up_rows(2, 1000)
    path = write_rows(tmp_path / "rows.jsonl", [row | {"more": "x" * 300} for row in rows])
    build(tmp_path / "out", path, "--test_shards=0", "--shard_tokens=5000")
    spent = []
    for columns in (None, "url"):
        before, output = bytes_read(), tmp_path / f"text-{columns}"
        files = fineshards.export(
            tmp_path / "out", output, "text", columns=columns, workers=2
        ).files
        spent.append(bytes_read() - before)
    assert len(files) > 20
    # Once per thread, and once for the types. Each file from the beginning was 10 times as much.
    assert spent[1] - spent[0] < 5 * path.stat().st_size


@TO
@pytest.mark.curation
def test_scores_are_columns_of_the_text(to: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[[steps]]\nuse = "score"\nname = "length"\nby = "characters"\n'
        '[[steps]]\nuse = "where"\nsql = "length > 10"\n'
        '[[steps]]\nuse = "score"\nname = "words_after"\nby = "words"\n'
    )
    paths = [write_rows(tmp_path / f"{part}.jsonl", ROWS[part::2]) for part in (0, 1)]
    build(tmp_path / "out", *paths, f"--recipe={recipe}", "--shuffle_seed=2", *BY_TEXT)
    fineshards.export(tmp_path / "out", tmp_path / "x", to, tokens_per_file=500, columns="group")
    found = [row for split in ("test", "train") for row in read(tmp_path / "x", split)]
    assert len(found) == sum(len(row["text"] or "") > 10 for row in ROWS)
    for row in found:
        text = ROWS[int(row["file"][0]) :: 2][row["row"]]["text"]
        assert (row["length"], row["words_after"]) == (len(text), len(text.split()))
    with pytest.raises(UsageError, match="there is a column 'length' already"):
        fineshards.export(tmp_path / "out", tmp_path / "y", to, columns=["length"])


@TO
@pytest.mark.curation
def test_a_later_build_chooses_by_stored_scores(to: str, tmp_path: Path) -> None:
    """As if the first one had chosen: its recipe is not needed any more."""
    rows = write_rows(tmp_path / "rows.parquet", ROWS)
    score = '[[steps]]\nuse = "score"\nname = "edu"\nby = "short_line_ratio"\n'
    recipe, both = tmp_path / "recipe.toml", tmp_path / "both.toml"
    recipe.write_text(score)
    both.write_text(score + '[[steps]]\nuse = "where"\nsql = "edu < 0.5"\n')
    build(tmp_path / "out", rows, f"--recipe={recipe}", *BY_TEXT)
    fineshards.export(tmp_path / "out", tmp_path / "text", to)
    build(tmp_path / "chosen", tmp_path / "text/data", "--where=edu < 0.5", *BY_TEXT)
    build(tmp_path / "expected", rows, f"--recipe={both}", *BY_TEXT)
    assert shards_in(tmp_path / "chosen") == shards_in(tmp_path / "expected")
    # A text without lines has no ratio, so there are NULLs to compare.
    ratios = [row["edu"] for split in ("test", "train") for row in read(tmp_path / "text", split)]
    assert None in ratios
    assert {0.0, 1.0} <= {*ratios}
