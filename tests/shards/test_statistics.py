"""Statistics: equal to those of plain Python, however the input is cut and the work is done."""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.growing import append
from support.growing import build as build_of
from support.oracle import ENCODING

import fineshards
from fineshards.cli.cli import main
from fineshards.curation.batch import Batch
from fineshards.curation.steps.unwanted_lines import SymbolLines
from fineshards.errors import InputError, OutputError, UsageError
from fineshards.shards.counts import MANY_VALUES
from fineshards.shards.parquet_file import parquet_bytes
from fineshards.shards.tables import statistics
from fineshards.shards.tables.statistics import SCHEMA, SUMS, Tally, measure, merged

Row = dict[str, Any]
RECIPE = """
[[steps]]
use = "score"
name = "kind"
by = "language"

[[steps]]
use = "length"
min_chars = 700

[[steps]]
use = "symbol_lines"

[[steps]]
use = "exact"

[[steps]]
use = "length"
max_chars = 4000
max_bytes = 5000
"""
FLAGS = ("--shard_tokens=100k", "--workers=2")


@pytest.fixture(scope="module")
def rows(sample: Path) -> list[list[Row]]:
    """Three files: documents of the sample, in part repeated, and values of all kinds."""
    draw = random.Random(1)
    table = pq.read_table(sample, columns=["text", "language", "dump"]).to_pylist()
    files: list[list[Row]] = [[], [], []]
    for number in range(500):
        row = dict(table[draw.randrange(300)])
        if draw.random() < 0.2:
            row["text"] = f"|\n{row['text']}"
        if draw.random() < 0.05:
            row["text"] = draw.choice([None, "", " \n"])
        host = draw.choice(["a.example", "B.example:80", f"{draw.randrange(40)}.example", ""])
        row["url"] = draw.choice([None, "no URL", *[f"https://{host}/{number}"] * 8])
        row["language"] = draw.choice([None, *[row["language"]] * 9])
        row["level"] = draw.choice([1, 2, 3])
        row["tags"] = [str(number % 7)]
        files[number % 3].append(row)
    return files


@pytest.fixture(scope="module")
def source(rows: list[list[Row]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("statistics") / "in"
    folder.mkdir()
    for number, part in enumerate(rows):
        pq.write_table(pa.Table.from_pylist(part), folder / f"{number}.parquet", row_group_size=30)
    (folder.parent / "recipe.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def dataset(source: Path) -> Path:
    """A finished dataset with a recipe. Read-only."""
    curated(source, source.parent / "out")
    return source.parent / "out"


def curated(source: Path, output: Path, *flags: str) -> dict[str, bytes]:
    """The statistics of a build with the recipe."""
    build_of(output, source, *FLAGS, f"--recipe={source.parent / 'recipe.toml'}", *flags)
    return stored(output)


def stored(output: Path) -> dict[str, bytes]:
    """The statistics of a dataset, by the names of their files."""
    return {path.name: path.read_bytes() for path in output.glob("metadata/statistics/*")}


# -- the oracle


class Counted:
    """Counts of documents by what, step, value and bin, in plain Python; and the documents."""

    def __init__(self) -> None:
        self.sums: dict[tuple[Any, ...], Counter[str]] = {}
        self.documents: list[tuple[Row, int]] = []

    def add(
        self, what: str, text: str, step: int | None = None, value: Any = None, bin_: Any = None
    ) -> None:
        numbers = {
            "documents": 1,
            "bytes": len(text.encode()),
            "words": len(text.encode().split()),
            "lines": len(text.removesuffix("\n").split("\n")) if text else 0,
        }
        if what not in ("input", "dropped", "changed"):
            numbers["tokens"] = len(ENCODING.encode_ordinary(text)) + 1
        self.sums.setdefault((what, step, value, bin_), Counter()).update(numbers)

    def add_document(self, row: Row, text: str) -> None:
        tokens = len(ENCODING.encode_ordinary(text)) + 1
        self.documents.append((row, tokens))
        self.add("dataset", text)
        self.add("bytes", text, bin_=power(len(text.encode())))
        self.add("tokens", text, bin_=power(tokens))
        for name in ("language", "dump"):
            if row[name] is not None:
                self.add(name, text, value=row[name])


def power(size: int) -> int:
    return max([0, *(1 << bit for bit in range(40) if 1 << bit <= size)])


def expected(files: Sequence[Sequence[Row]], with_recipe: bool = True) -> list[Counted]:
    """The statistics of the rows of each file that pass the recipe, one by one."""
    found, seen = [], set()
    for rows in files:
        counted = Counted()
        found.append(counted)
        for row in (row for row in rows if row["text"] is not None):
            text = row["text"]
            if not with_recipe:
                counted.add_document(row, text)
                continue
            counted.add("input", text)
            if len(text) < 700:
                counted.add("dropped", text, 1, "min_chars")
                continue
            changed = SymbolLines().apply(Batch.of_texts([text])).texts
            before, text = text, text if changed is None else changed[0]
            if text != before:
                counted.add("changed", text, 2)
            if text in seen:
                counted.add("dropped", text, 3, "exact_text")
                continue
            seen.add(text)
            if len(text) > 4000 or len(text.encode()) > 5000:
                reason = "max_chars" if len(text) > 4000 else "max_bytes"
                counted.add("dropped", text, 4, reason)
                continue
            counted.add_document(row, text)
    return found


def check(output: Path, counted: Sequence[Counted]) -> None:
    """Compares the stored tables with plain Python, file by file, and their sum."""
    tables = [
        pq.read_table(output / f"metadata/statistics/{file:05d}.parquet")
        for file in range(len(counted))
    ]
    whole = Counted()
    for table, of_file in zip(tables, counted, strict=True):
        assert by_key(table.to_pylist()) == of_file.sums
        for key, numbers in of_file.sums.items():
            whole.sums.setdefault(key, Counter()).update(numbers)
    rows = [vars_of(count) for count in fineshards.stats(output).counts]
    assert by_key(rows) == whole.sums
    assert fineshards.verify(output).problems == []


def vars_of(count: Any) -> Row:
    """A count as a row of the tables, in which steps count from 0."""
    row = {name: getattr(count, name) for name in SCHEMA.names}
    return row if row["step"] is None else row | {"step": row["step"] - 1}


def by_key(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    return {
        tuple(row[name] for name in SCHEMA.names[:4]): {
            name: row[name] for name in SUMS if row[name] is not None
        }
        for row in rows
    }


# -- whole builds


def test_statistics_of_steps_and_dataset_are_those_of_plain_python(
    dataset: Path, rows: list[list[Row]]
) -> None:
    counted = expected(rows)
    check(dataset, counted)
    reasons = {value for each in counted for what, _, value, _ in each.sums if what == "dropped"}
    assert reasons == {"min_chars", "exact_text", "max_chars", "max_bytes"}
    assert any(what == "changed" for each in counted for what, *_ in each.sums)


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [
        ("--block_bytes=1",),
        ("--workers=1", "--block_bytes=40k", "--memory_bytes=1k"),
        ("--shuffle_seed=3", "--block_bytes=100k"),
    ],
    ids=["a block for each row group", "one worker", "shuffled"],
)
def test_blocks_and_workers_do_not_change_a_byte(
    source: Path, dataset: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    assert curated(source, tmp_path / "out", *flags) == stored(dataset)


def test_json_lines_have_the_same_statistics(
    source: Path, dataset: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number, part in enumerate(rows):
        lines = "".join(f"{json.dumps(row)}\n" for row in part)
        (tmp_path / f"in/{number}.jsonl").write_text(lines)
    shutil.copy(source.parent / "recipe.toml", tmp_path)
    assert curated(tmp_path / "in", tmp_path / "out") == stored(dataset)
    for column in ("url", "level"):
        found = fineshards.stats(tmp_path / "out", column=column, top=1000)
        assert found.column == fineshards.stats(dataset, column=column, top=1000).column


def test_a_build_without_steps_counts_on_request_only(
    source: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    build_of(tmp_path / "plain", source, *FLAGS)
    assert not stored(tmp_path / "plain")
    with pytest.raises(OutputError, match="built without --statistics"):
        fineshards.stats(tmp_path / "plain")
    build_of(tmp_path / "counted", source, *FLAGS, "--statistics")
    check(tmp_path / "counted", expected(rows, with_recipe=False))


@pytest.mark.long
def test_a_restart_takes_the_statistics_of_finished_blocks(
    source: Path, dataset: Path, tmp_path: Path
) -> None:
    """Blocks of each pass are damaged or lost; the others are not judged again."""
    flags = ("--block_bytes=1", "--keep_checkpoints")
    curated(source, tmp_path / "out", *flags)
    (kept,) = (path for path in (tmp_path / "out/checkpoints").iterdir() if len(path.name) == 64)
    for folder in ("judged/0", "judged/1", "statistics"):
        found = sorted((kept / folder).glob("*.json"))
        found[0].unlink()
        found[1].write_bytes(bytes(found[1].stat().st_size))
    times = {path: path.stat().st_mtime_ns for path in kept.rglob("judged/0/*.json")}
    (tmp_path / "out/metadata/manifest.json").unlink()
    shutil.rmtree(tmp_path / "out/metadata/statistics")
    assert curated(source, tmp_path / "out", *flags) == stored(dataset)
    same = [path for path, time in times.items() if path.stat().st_mtime_ns == time]
    assert len(same) == len(times) - 1  # all but the damaged one; the lost one is not listed


@pytest.mark.long
def test_an_append_adds_the_tables_of_its_files(
    source: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    first, *more = sorted(source.iterdir())
    build_of(tmp_path / "out", first, *FLAGS, "--statistics")
    for file in more:
        append(tmp_path / "out", file)
    check(tmp_path / "out", expected(rows, with_recipe=False))
    build_of(tmp_path / "at-once", source, *FLAGS, "--statistics")
    assert stored(tmp_path / "out") == stored(tmp_path / "at-once")
    (total,) = (
        count
        for count in fineshards.stats(tmp_path / "out", generation=1).counts
        if count.what == "dataset"
    )
    assert total.documents == sum(row["text"] is not None for row in rows[0])


def test_a_redaction_keeps_the_statistics(source: Path, tmp_path: Path) -> None:
    build_of(tmp_path / "out", source, *FLAGS, "--statistics")
    before = stored(tmp_path / "out")
    column = fineshards.stats(tmp_path / "out", column="level").column
    assert main(["redact", f"{tmp_path}/out", "--documents", "0"]) == 0
    assert stored(tmp_path / "out") == before
    assert fineshards.verify(tmp_path / "out").problems == []
    # Values of a redacted document are not read.
    left = fineshards.stats(tmp_path / "out", column="level").column
    assert left is not None
    assert column is not None
    assert sum(each.documents for each in left.values) + 1 == sum(
        each.documents for each in column.values
    )


def test_verify_finds_statistics_that_changed(dataset: Path, tmp_path: Path) -> None:
    output, name = Path(shutil.copytree(dataset, tmp_path / "out")), "metadata/statistics/00001"
    content = bytearray((output / f"{name}.parquet").read_bytes())
    content[100] ^= 1
    (output / f"{name}.parquet").write_bytes(content)
    (problem,) = fineshards.verify(output).problems
    assert problem.startswith(f"{name}.parquet has crc32c")
    (output / f"{name}.parquet").unlink()
    assert fineshards.verify(output).problems == [f"{name}.parquet is missing"]
    with pytest.raises(OutputError, match=r"00001\.parquet"):
        fineshards.stats(output)


def test_stats_shows_all_and_a_step(
    dataset: Path, rows: list[list[Row]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(dataset)]) == 0
    text = capsys.readouterr().out
    counted = expected(rows)

    def total(what: str, step: int | None, name: str = "documents") -> int:
        sums = [each.sums for each in counted]
        return sum(of[key][name] for of in sums for key in of if (key[0], key[1]) == (what, step))

    found = total("input", None)
    for number, use in enumerate(("score", "length", "symbol_lines", "exact", "length")):
        gone = total("dropped", number)
        line = rf"{number + 1} {use} +{found:,} in +{found - gone:,} kept +{gone:,} dropped"
        assert re.search(line, text)
        found -= gone
    assert found == total("dataset", None)
    assert f"(text changed)                     {total('changed', 2)} documents" in text
    assert f"{total('dataset', None, 'words'):,} words" in text
    assert "documents of the dataset, by length in tokens" in text
    assert main(["stats", str(dataset), "--step=4", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert [(each["what"], each["value"]) for each in one["counts"]] == [("dropped", "exact_text")]
    assert [each["use"] for each in one["steps"]] == ["exact"]
    assert {each["step"] for each in one["counts"]} == {4}
    with pytest.raises(UsageError, match="it has 5 steps"):
        fineshards.stats(dataset, step=6)


# -- values of a column


def host_of(url: str | None) -> str | None:
    return urlsplit(url or "").hostname


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("url", lambda row: host_of(row["url"])),
        ("dump", lambda row: row["dump"]),
        ("level", lambda row: str(row["level"])),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--shuffle_seed=3",)], ids=["in order", "shuffled"])
def test_values_of_a_column_are_counted(
    source: Path,
    dataset: Path,
    rows: list[list[Row]],
    tmp_path: Path,
    column: str,
    value: Callable[[Row], str | None],
    flags: tuple[str, ...],
) -> None:
    output = dataset
    if flags:
        output = tmp_path / "out"
        curated(source, output, *flags)
    documents, tokens = Counter[str | None](), Counter[str | None]()
    for row, length in (each for counted in expected(rows) for each in counted.documents):
        documents[value(row)] += 1
        tokens[value(row)] += length
    found = fineshards.stats(output, column=column, top=5).column
    assert found is not None
    listed = [each.value for each in found.values]
    order = sorted(documents, key=lambda name: (-documents[name], name is None, name or ""))
    assert listed == order[:5]
    for each in found.values:
        assert (each.documents, each.tokens) == (documents[each.value], tokens[each.value])
    assert found.other_values == len(order[5:])
    assert found.others == sum(documents[name] for name in order[5:])


def test_values_of_scores_and_of_the_document_tables_are_counted(
    dataset: Path, rows: list[list[Row]], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [len(counted.documents) for counted in expected(rows)]
    found = fineshards.stats(dataset, column="file").column
    assert found is not None
    assert sorted(each.documents for each in found.values) == sorted(files)
    scores = Counter[str]()
    for file in range(3):
        table = pq.read_table(dataset / f"metadata/scores/{file:05d}.parquet")
        scores.update(table["kind"].to_pylist())
    found = fineshards.stats(dataset, column="kind").column
    assert found is not None
    assert sum(each.documents for each in found.values) == sum(files) - found.others
    assert {each.value for each in found.values} <= set(scores)
    assert main(["stats", str(dataset), "--column=url", "--top=2"]) == 0
    title, *values, others = capsys.readouterr().out.splitlines()[1:]
    assert title == "documents and tokens of the dataset, by host of url"
    assert len(values) == 2
    assert "other values)" in others


def test_columns_that_cannot_be_counted_are_named(dataset: Path) -> None:
    with pytest.raises(UsageError, match=r"--column tags: its type is list.*only plain values"):
        fineshards.stats(dataset, column="tags")
    with pytest.raises(InputError, match="has no column 'nosuch'; its columns are"):
        fineshards.stats(dataset, column="nosuch")


# -- the parts

texts = st.lists(st.text(st.sampled_from("ab \n\t\r\x0b\x0c\x1c\x85\xa0é"), max_size=12))


@given(texts, st.integers(0, 3))
def test_words_and_lines_are_those_of_plain_python(found: list[str], first: int) -> None:
    numbers = measure(pa.array(found, pa.large_string()).slice(first))
    for number, text in enumerate(found[first:]):
        content = text.encode()
        lines = len(text.removesuffix("\n").split("\n")) if text else 0
        assert numbers[number].tolist() == [len(content), len(content.split()), lines]


documents = st.lists(
    st.tuples(st.text("ab ", max_size=3), st.sampled_from("abcdefgh"), st.sampled_from("ijklmn")),
    max_size=8,
)


@pytest.mark.long
@given(st.lists(documents, min_size=5, max_size=5), st.randoms(use_true_random=False))
def test_any_way_of_adding_up_gives_the_same(
    batches: list[list[tuple[str, str, str]]], draw: random.Random
) -> None:
    """With limits that are reached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "MAX_VALUES", 3)
        patch.setattr(statistics, "_ROWS_KEPT", 20)
        whole, parts = Tally(), []
        for batch in batches:
            one = Tally()
            for tally in (whole, one):
                texts = pa.array([text for text, _, _ in batch], pa.large_string())
                labels = {"language": pa.array([label for _, _, label in batch], pa.string())}
                tally.add_dataset(texts, np.arange(len(batch)), labels)
                tally.add("dropped", texts, 0, [reason for _, reason, _ in batch])
            parts.append(one.table())
        while len(parts) > 1:
            draw.shuffle(parts)
            size = draw.randint(2, 3)
            parts = [*parts[size:], merged(parts[:size])]
        assert parquet_bytes(parts[0]) == parquet_bytes(whole.table())
        found = [row for row in parts[0].to_pylist() if row["what"] == "language"]
        values = {label for batch in batches for _, _, label in batch}
        assert {row["value"] for row in found} == ({MANY_VALUES} if len(values) > 3 else values)
        assert sum(row["documents"] for row in found) == sum(map(len, batches))
