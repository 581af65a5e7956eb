"""Columns that the steps of a recipe ask for: read beside the text, with the types of the file."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyarrow import ipc
from support.source_files import blocks_of, describe, read_all, read_file

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.pipeline.launch import describe_job
from fineshards.shards.job.job import Job
from fineshards.shards.job.settings import Columns
from fineshards.sources.files import find_files
from fineshards.sources.reading import check_fields, column_types, read_block


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
    rows["http_body"] = ["<p>a</p>", "<p>"]  # which is a label of WARC alone
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    lines = [json.dumps({name: values[i] for name, values in rows.items()}) for i in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    columns = replace(asking(*rows, split="url"), id_required=True)
    for name in ("a.parquet", "a.jsonl"):
        read = read_all(tmp_path / name, columns=columns)
        assert read.rows == [(0, "a", "1"), (1, None, "2")]
        assert {name: of for name, of in read.labels.items() if any(of)} == {"dump": ["x", "y"]}
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


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_folders_are_columns_as_for_pyarrow(tmp_path: Path, ending: str) -> None:
    """Decoded, null by its name, the outer folder first, and before a column of the file."""
    folders = (
        *("lang=de", "lang=a%2Fb%20c", "lang=", "lang=x=y", "la%6Eg=fr", "lang=q/lang=r"),
        *("n=1/lang=5", "lang=__HIVE_DEFAULT_PARTITION__"),
    )
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        path = tmp_path / folder / f"a.{ending}"
        if ending == "parquet":
            pq.write_table(pa.table({"text": ["a", "b"], "own": [1, 2], "lang": ["o", None]}), path)
        else:
            path.write_text('{"text":"a","own":1,"lang":"o"}\n{"text":"b","own":2}\n')
    columns = asking("own", "lang", split="lang")
    files = find_files([str(tmp_path)])
    assert len(files) == len(folders)
    for file in files:
        partitioning = ds.partitioning(pa.schema([("lang", pa.string())]), flavor="hive")
        theirs = ds.dataset(
            file.path, format="json" if ending == "jsonl" else "parquet", partitioning=partitioning,
            partition_base_dir=str(tmp_path), schema=pa.schema([("lang", pa.string())]),
        )  # fmt: skip
        expected = theirs.to_table()["lang"].to_pylist()
        read = read_file(file, columns=columns)
        values = read.others["lang"]
        if ending == "jsonl":
            values = [value and json.loads(value) for value in values]
        assert values == expected
        (rows,) = read_block(file, columns, blocks_of(Path(file.path), columns=columns)[0])
        assert rows.split.to_pylist() == expected
        assert list(rows.others) == ["own", "lang"]
        assert column_types(file, columns).field("lang").type == pa.string()


def test_a_folder_is_a_label_and_no_other_name_matters(tmp_path: Path) -> None:
    folder = tmp_path / "language=de" / "text=x" / "id=5"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "a", "language": "en"}\n')
    read = read_all(folder / "a.jsonl", columns=asking())
    assert read.rows == [(0, "a", None)]
    assert read.labels["language"] == ["de"]


def test_a_dataset_in_folders_grows_moves_and_is_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for lang in ("de", "en", "fr"):
        (tmp_path / "in" / f"lang={lang}").mkdir(parents=True)
        lines = (json.dumps({"text": f"{lang} {n}"}) + "\n" for n in range(30))
        (tmp_path / "in" / f"lang={lang}" / "a.jsonl").write_text("".join(lines))
    build = ["--where", "lang <> 'en'", "--split_key", "column:lang", "--test_fraction", "0.5"]
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    assert main(["build", f"--input={tmp_path}/in", f"--output={whole}", *build]) == 0
    first = [f"{tmp_path}/in/lang={lang}" for lang in ("de", "en")]
    assert main(["build", "--input", *first, f"--output={grown}", *build]) == 0
    assert main(["append", str(grown), f"--input={tmp_path}/in/lang=fr"]) == 0
    sides = {}
    for folder in (whole, grown):
        text = tmp_path / f"text-{folder.name}"
        export = ["--to=text", f"--output={text}", "--columns=lang"]
        assert main(["export", str(folder), *export]) == 0
        sides[folder.name] = {
            split: sorted(
                (row["lang"], row["text"])
                for path in (text / "data").glob(f"{split}-*")
                for row in pq.read_table(path).to_pylist()
            )
            for split in ("test", "train")
        }
    assert sides["whole"] == sides["grown"]
    rows = [row for split in sides["whole"].values() for row in split]
    assert sorted(rows) == sorted((lang, f"{lang} {n}") for lang in ("de", "fr") for n in range(30))
    (tmp_path / "in").rename(tmp_path / "lang=xx")
    moved = [f"--sources={tmp_path}/in={tmp_path}/lang=xx"]
    next(grown.glob("train/*.npy")).unlink()
    assert main(["repair", str(grown), *moved]) == 0
    assert main(["verify", str(grown), "--sample=100%", *moved]) == 0


def test_a_field_that_no_first_row_has_is_refused_with_those_that_they_have(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('5\n{"text": "a", "meta": {"lang": "de"}}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": "b", "late": null}\n')
    files = find_files([str(tmp_path)])
    for names in (["late"], ["meta.lang", "late", "meta"], []):
        check_fields(files, asking(*names))
    with pytest.raises(
        InputError, match=r"a\.jsonl, .*b\.jsonl have no field 'lat', 'meta\.x'; .*"
    ):
        check_fields(files, asking("lat", "text", "meta.x"))
    with pytest.raises(InputError, match=r"their fields are late, meta, text\. Correct the name"):
        check_fields(files, asking("lat"))
    # Of many files, ten that are spread over the input.
    many = files[:1] * 16 + files[1:] * 4
    check_fields(many, asking("late"))
    with pytest.raises(InputError, match=r"jsonl and 7 more have"):
        check_fields(many, asking("lat"))
    (tmp_path / "c.csv").write_text("text,lat\na,b\n")
    check_fields(find_files([str(tmp_path)]), asking("lat"))


def test_a_misspelt_column_of_a_condition_ends_a_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "lang": "de"}\n' * 9)
    flags = [f"--input={tmp_path}/a.jsonl", f"--output={tmp_path}/out"]
    assert main(["build", *flags, "--where=lnag = 'de'"]) == 1
    assert "have no field 'lnag'; their fields are lang, text." in capfd.readouterr().err
    assert main(["build", *flags, "--where=lang = 'de'"]) == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"body": ["a"]}, "text string, n int64"),
        ({"text": [5], "n": [1]}, "text string"),
        ({"n": [1]}, "text string"),
    ],
)
def test_a_file_of_other_columns_is_compared_with_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], table: dict[str, Any], said: str
) -> None:
    pq.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(table), tmp_path / "b.parquet")
    assert main(["build", f"--input={tmp_path}/*.parquet", f"--output={tmp_path}-out"]) == 1
    error = rf"b\.parquet.* column 'text'.* The first file, .*/a\.parquet, has {said}\."
    assert re.search(error, capfd.readouterr().err)
