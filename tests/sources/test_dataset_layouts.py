"""`--dataset` on a local folder reads what `datasets.load_dataset` reads, whatever its layout."""

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support.oracle import oracle, shards_in
from support.source_files import read_file

import fineshards
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.formats.extraction import with_extraction
from fineshards.sources.places.hub import DatasetRequest, ResolvedDataset, resolve_dataset


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def parquet(*texts: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [*texts]}), sink)
    return sink.getvalue()


def arrow(new: Any, *texts: str) -> bytes:
    table, sink = pa.table({"text": [*texts]}), io.BytesIO()
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def readme(*settings: str) -> bytes:
    """A README.md with one config."""
    return "\n  ".join(["---\nconfigs:\n- config_name: default", *settings, "\n---\n"]).encode()


LAYOUTS: dict[str, dict[str, bytes]] = {
    "names with numbers of shards": {
        "data/train-00000-of-00002.parquet": parquet("a"),
        "data/train-00001-of-00002-0f3a.parquet": parquet("b"),
        "data/test-00000-of-00001.parquet": parquet("c"),
        "data/mine-00000-of-00001.parquet": parquet("d"),
        "train.parquet": parquet("e"),
    },
    "folders of splits": {
        "train/1.jsonl": lines("a"),
        "train/x/2.jsonl": lines("b"),
        "x/training-1/3.jsonl": lines("c"),
        "eval/4.jsonl": lines("d"),
        "more/5.jsonl": lines("e"),
    },
    "splits in names": {
        "train.jsonl": lines("a"),
        "my-train_2.jsonl": lines("b"),
        "x/training 3.jsonl": lines("c"),
        "dev.jsonl": lines("d"),
        "trainer.jsonl": lines("e"),
        "constrain.jsonl": lines("f"),
    },
    "no splits": {
        f"{name}.jsonl": lines(name) for name in ("b", "a", "z/c", "Z", "10", "9", "[1]", "c?#%20")
    },
    "hidden files": {
        f"{name}.jsonl": lines(name)
        for name in ("a", ".b", ".c/d", "_e", "__f", "__g/h", "_i/j", "k/__l/m", "k/.n/o")
    },
    "records beside data": {
        "a.json": lines("a"),
        "config.json": lines("b"),
        "x/config.json": lines("c"),
        "dataset_info.json": b"{}",
        "stats.json": lines("d"),
        "README.md": b"# about",
        "LICENSE": b"",
    },
    "lines of text": {
        "a.txt": b"one\r\ntwo\n three \rfour\x0bx\x1cy\xc2\x85z\xe2\x80\xa8w\nlast",
        "b.txt": b"",
        "LICENSE.txt": b"licence\n",
    },
    "compressed files": {
        "a.jsonl.gz": gzip.compress(lines("a")),
        "b.jsonl.zst": zstandard.compress(lines("b")),
        "c.jsonl.xz": lzma.compress(lines("c")),
        "d.jsonl.bz2": bz2.compress(lines("d")),
        "e.jsonl": lines("e"),
        "f.jsonl": gzip.compress(lines("f")),
    },
    "compressed text": {"train.txt.gz": gzip.compress(b"a\nb\n"), "c.txt": b"c"},
    "endings in capitals": {
        "a.jsonl": lines("a"),
        "B.JSONL": lines("b"),
        "c.jsonl.GZ": gzip.compress(lines("c")),
    },
    "several formats": {
        "a.jsonl": lines("a"),
        "b.json": lines("b"),
        "c.ndjson": lines("c"),
        "d.csv": b"text\nd\n",
        "e.txt": b"e\n",
        "f.jsonlines": lines("f"),
    },
    "as many of two formats": {"train/a.csv": b"text\na\n", "train/b.parquet": parquet("b")},
    "arrays": {
        "a.json": json.dumps([{"text": "a"}, {"text": "b", "x": [1, {"y": 2}]}]).encode(),
        "b.json": json.dumps(["c", 'd\n"e"'], indent=1).encode(),
    },
    "nulls and NaN": {
        "a.jsonl": b'{"text": "a", "n": NaN}\n{"text": null}\n\n{"text": "", "n": 1}\n{"text": "b"}'
    },
    "CSV": {"train.csv": b'\xef\xbb\xbftext,n\r\n"a ""q"", b\nc",1\r\n\r\n x ,2\r\n,3\r\n'},
    "TSV": {"train.tsv": b'text\tn\n"a\tb\nc"\t1\nd "e" f\t2\n\t3\n'},
    "Arrow": {
        "a.arrow": arrow(pa.ipc.new_stream, "a"),
        "b.arrow": arrow(pa.ipc.new_file, "b", "c"),
    },
    "patterns of a README": {
        "README.md": readme(
            "data_files:",
            "- split: train",
            "  path: [b/*.jsonl, a/*.jsonl, '.h/*.jsonl']",
            "- split: test",
            "  path: t.jsonl",
        ),
        **{f"{name}.jsonl": lines(name) for name in ("a/1", "b/1", "b/2", ".h/1", "t", "c")},
    },
    "a folder of a README": {
        "README.md": readme("data_dir: en"),
        "en/train.jsonl": lines("a"),
        "en/x.jsonl": lines("b"),
        "de/train.jsonl": lines("c"),
    },
    "columns of a README": {
        "README.md": readme("data_files: '*.parquet'", "columns: [text]"),
        "a.parquet": parquet("a"),
    },
}


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def resolved(folder: str, split: str = "train") -> ResolvedDataset:
    return resolve_dataset(DatasetRequest(folder, None, split, None))


def texts_of(files: list[SourceFile]) -> list[str]:
    reads = [read_file(file) for file in with_extraction(files, "resiliparse")]
    assert [read.bad for read in reads] == [[]] * len(reads)
    return [text for read in reads for _, text, _ in read.rows if text is not None]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_as_the_library_reads_it(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "in", LAYOUTS[name])
    expected = datasets.load_dataset(folder, cache_dir=str(tmp_path / "cache"))
    assert resolved(folder).splits == [*expected]
    for split, rows in expected.items():
        texts = [text for text in rows["text"] if text is not None]
        assert texts_of(resolved(folder, split).files) == texts, split


def test_a_build_has_the_texts_of_the_library(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", LAYOUTS["lines of text"])
    rows = datasets.load_dataset(folder, cache_dir=str(tmp_path / "cache"))["train"]
    fineshards.build(dataset=folder, output=tmp_path / "out", shard_tokens=9, test_shards=1)
    assert shards_in(tmp_path / "out") == oracle(rows["text"], 9, test_shards=1)
    assert fineshards.verify(tmp_path / "out", sample="100%").ok
    # A flag counts for more.
    output = {"output": tmp_path / "whole", "shard_tokens": 9, "test_shards": 1}
    fineshards.build(dataset=folder, text_separator="|", **output)
    expected = [(tmp_path / "in" / name).read_bytes().decode() for name in ("LICENSE.txt", "a.txt")]
    assert shards_in(tmp_path / "whole") == oracle(expected, 9, test_shards=1)


def test_where_fineshards_differs_from_the_library(tmp_path: Path) -> None:
    """Its page of input lists these: each would lose or change a text."""
    marks = write(tmp_path / "marks", {"a.txt": b"\xef\xbb\xbfa\n\n \nb\n"})
    assert texts_of(resolved(marks).files) == ["a", "b"]
    words = write(tmp_path / "words", {"a.csv": b'text,n\nNA,1\nNone,2\n"",3\n'})
    assert texts_of(resolved(words).files) == ["NA", "None", ""]
    numbers = write(tmp_path / "numbers", {"a.csv": b"text\n007\n1.50\n"})
    assert texts_of(resolved(numbers).files) == ["007", "1.50"]
    short = write(tmp_path / "short", {"a.csv": b"text,n\na,1\nb\n"})
    lacking = write(tmp_path / "lacking", {"a.jsonl": b'{"text": "a"}\n{"n": 1}\n{"text": 5}\n'})
    reasons = [bad.reason for name in (short, lacking) for bad in read_bad(resolved(name).files)]
    assert reasons == [
        "has 1 values, expected 2",
        "has no field 'text' (an object of 1 field)",
        "its 'text' is a number, expected a string",
    ]


def read_bad(files: list[SourceFile]) -> list[Any]:
    return [bad for file in files for bad in read_file(file).bad]


@pytest.mark.parametrize(
    ("name", "setting", "content"),
    [
        ("a.csv", "sep: ';'", b"text;n\na;1\n"),
        ("a.csv", 'sep: "\\t"', b"text\tn\na\t1\n"),
        ("a.tsv", "names: [id, text]", b"1\ta\n"),
        ("a.txt", "sample_by: paragraph", b"a\n\nb\n"),
        ("a.txt", "encoding: latin-1", b"\xe4\n"),
        ("a.json", "field: data", b'{"data": [{"text": "a"}]}'),
    ],
)
def test_settings_of_a_readme_that_are_not_obeyed_are_named(
    name: str, setting: str, content: bytes, tmp_path: Path
) -> None:
    files = {"README.md": readme(f"data_files: {name}", setting), name: content}
    said = rf"README\.md sets {setting.partition(':')[0]} for config 'default', which changes what"
    with pytest.raises(UsageError, match=said):
        resolved(write(tmp_path / "in", files))


def test_a_config_of_several_formats_is_refused(tmp_path: Path) -> None:
    """The library reads all files as the format that most of them have."""
    files = {"a.jsonl": lines("a"), "b.csv": b"text\nb\n"}
    files["README.md"] = readme("data_files: [a.jsonl, b.csv]")
    with pytest.raises(UsageError, match=r"a\.jsonl and .*b\.csv differ in their format"):
        resolved(write(tmp_path / "in", files))


def test_a_saved_dataset_must_have_the_split_that_its_record_lists(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    saved = tmp_path / "saved"
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(saved))
    assert resolved(str(saved)).splits == ["train", "test"]
    with pytest.raises(UsageError, match=r"'dev'\. Choose one with --dataset_split: train, test\."):
        resolved(str(saved), "dev")
    (saved / "train").rename(tmp_path / "elsewhere")
    assert texts_of(resolved(str(saved), "test").files) == ["a", "b"]
    with pytest.raises(InputError, match=r"train/state\.json is not there, although .*_dict\.json"):
        resolved(str(saved))
