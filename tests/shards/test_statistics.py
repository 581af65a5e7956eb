"""Statistics: equal to those of plain Python, however the input is cut and the work is done."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from fineshards.curation.batch import Batch
from fineshards.curation.steps.unwanted_lines import SymbolLines
from fineshards.errors import OutputError, UsageError
from fineshards.inspection.stats import describe_stats, stats
from fineshards.shards.counts import MANY_VALUES
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.tables import statistics
from fineshards.shards.tables.measures import Tally, Traits, measure
from fineshards.shards.tables.statistics import (
    COUNTS,
    OTHER_HOSTS,
    SUMS,
    finished,
    hosts_by_range,
    merged,
    to_bytes,
    with_top_hosts,
)
from fineshards.storage.open import open_storage

Row = dict[str, Any]
RECIPE = """
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
NAME = "metadata/statistics.parquet"
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
        row["language_score"] = draw.choice([None, -0.5, 0.0, 0.29, 1.0, draw.random()])
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
    output = source.parent / "out"
    build_of(output, source, *FLAGS, f"--recipe={source.parent / 'recipe.toml'}")
    return output


def curated(source: Path, output: Path, *flags: str) -> bytes:
    """The statistics of a build with the recipe."""
    build_of(output, source, *FLAGS, f"--recipe={source.parent / 'recipe.toml'}", *flags)
    return (output / NAME).read_bytes()


# -- the oracle

Key = tuple[Any, ...]


class Counted:
    """Counts of documents by key, in plain Python."""

    def __init__(self) -> None:
        self.sums: Counter[tuple[Key, str]] = Counter()

    def add(self, scope: str, row: Row, text: str, step: int | None, reason: str | None) -> None:
        size, tokens = len(text.encode()), len(ENCODING.encode_ordinary(text)) + 1
        numbers = {
            "documents": 1,
            "bytes": size,
            "words": len(text.encode().split()),
            "lines": len(text.removesuffix("\n").split("\n")) if text else 0,
            "tokens": tokens,
        }
        plain = (scope, step, reason)
        keys: list[Key] = [(*plain, "total", None, None, None)]
        if scope not in ("in", "kept", "changed"):
            keys.append((*plain, "bytes", None, *power(size)))
            keys += [
                (*plain, name, row[name], None, None)
                for name in ("language", "dump")
                if row[name] is not None
            ]
            if row["language_score"] is not None:
                keys.append((*plain, "language_score", None, *hundredth(row["language_score"])))
        if scope == "dataset":
            keys.append((*plain, "tokens", None, *power(tokens)))
            host = urlsplit(row["url"] or "").hostname
            if host:
                keys.append((*plain, "host", host, None, None))
        for key in keys:
            for name, number in numbers.items():
                self.sums[key, name] += number


def power(size: int) -> tuple[float, float]:
    least = 1
    while least <= size:
        least *= 2
    return (least / 2, least) if size else (0, 1)


def hundredth(score: float) -> tuple[float | None, float | None]:
    if score < 0:
        return None, 0.0
    first = max(number for number in range(101) if number / 100 <= score)
    return first / 100, None if first == 100 else (first + 1) / 100


def expected(files: Sequence[Sequence[Row]], with_recipe: bool = True) -> Counter[tuple[Key, str]]:
    """The statistics of rows that pass the recipe, one by one."""
    counted, seen = Counted(), set()
    for row in (row for rows in files for row in rows if row["text"] is not None):
        text = row["text"]
        if not with_recipe:
            counted.add("dataset", row, text, None, None)
            continue
        counted.add("input", row, text, None, None)

        def drop(step: int, reason: str, row: Row = row) -> None:
            counted.add("dropped", row, text, step, reason)  # noqa: B023

        counted.add("in", row, text, 0, None)
        if len(text) < 700:
            drop(0, "min_chars")
            continue
        counted.add("kept", row, text, 0, None)
        counted.add("in", row, text, 1, None)
        changed = SymbolLines().apply(Batch.of_texts([text])).texts
        before, text = text, text if changed is None else changed[0]
        counted.add("kept", row, text, 1, None)
        if text != before:
            counted.add("changed", row, text, 1, None)
        counted.add("in", row, text, 2, None)
        if text in seen:
            drop(2, "exact_text")
            continue
        seen.add(text)
        counted.add("kept", row, text, 2, None)
        counted.add("in", row, text, 3, None)
        if len(text) > 4000 or len(text.encode()) > 5000:
            drop(3, "max_chars" if len(text) > 4000 else "max_bytes")
            continue
        counted.add("kept", row, text, 3, None)
        counted.add("dataset", row, text, None, None)
    return counted.sums


def stored(tables: Sequence[pa.Table]) -> Counter[tuple[Key, str]]:
    """Stored statistics in the form of the oracle's."""
    found: Counter[tuple[Key, str]] = Counter()
    for row in (row for table in tables for row in table.to_pylist()):
        key = tuple(row[name] for name in COUNTS.names[:7])
        for name in SUMS:
            if row[name] is not None:
                found[key, name] += row[name]
    return found


def check(tables: Sequence[pa.Table], sums: Counter[tuple[Key, str]]) -> None:
    found = stored(tables)
    assert found == {key: sums[key] for key in found}
    assert {key for key, name in sums} == {key for key, name in found}


def read(folder: Path, name: str = NAME) -> pa.Table:
    return pq.read_table(folder / name)


# -- whole builds


def test_statistics_of_steps_and_dataset_are_those_of_plain_python(
    dataset: Path, rows: list[list[Row]]
) -> None:
    table = read(dataset)
    check([table], expected(rows))
    scopes = {"input", "in", "dropped", "kept", "changed", "dataset"}
    assert set(table["scope"].to_pylist()) == scopes
    reasons = {row["reason"] for row in table.to_pylist()}
    assert reasons == {None, "min_chars", "exact_text", "max_chars", "max_bytes"}
    assert table.schema.equals(statistics.SCHEMA)
    with_tokens = {row["scope"] for row in table.to_pylist() if row["tokens"] is not None}
    assert with_tokens == {"dataset"}
    assert fineshards.verify(dataset).problems == []


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [
        ("--block_bytes=1",),
        ("--workers=1", "--block_bytes=40k", "--bucket_bytes=1k"),
        ("--shuffle_seed=3", "--block_bytes=100k"),
    ],
    ids=["a block for each row group", "one worker", "shuffled"],
)
def test_blocks_and_workers_do_not_change_a_byte(
    source: Path, dataset: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    assert curated(source, tmp_path / "out", *flags) == (dataset / NAME).read_bytes()


def test_json_lines_have_the_same_statistics(
    source: Path, dataset: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number, part in enumerate(rows):
        lines = "".join(f"{json.dumps(row)}\n" for row in part)
        (tmp_path / f"in/{number}.jsonl").write_text(lines)
    shutil.copy(source.parent / "recipe.toml", tmp_path)
    assert curated(tmp_path / "in", tmp_path / "out") == (dataset / NAME).read_bytes()


def test_a_build_without_steps_counts_on_request_only(
    source: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    build_of(tmp_path / "plain", source, *FLAGS)
    assert not (tmp_path / "plain" / NAME).exists()
    with pytest.raises(OutputError, match="built without --statistics"):
        stats(str(tmp_path / "plain"))
    build_of(tmp_path / "counted", source, *FLAGS, "--statistics")
    check([read(tmp_path / "counted")], expected(rows, with_recipe=False))
    assert fineshards.verify(tmp_path / "counted").problems == []


@pytest.mark.long
def test_a_restart_takes_the_statistics_of_finished_blocks(
    source: Path, dataset: Path, tmp_path: Path
) -> None:
    """Blocks of each pass are damaged or lost; the others are not judged again."""
    flags = ("--block_bytes=1", "--keep_checkpoints")
    curated(source, tmp_path / "out", *flags)
    (kept,) = (path for path in (tmp_path / "out/checkpoints").iterdir() if len(path.name) == 64)
    for folder in ("judged/0", "judged/1", "statistics"):
        found = sorted((kept / folder).glob("*.decisions" if "judged" in folder else "*.parquet"))
        found[0].unlink()
        found[1].write_bytes(bytes(found[1].stat().st_size))
    times = {path: path.stat().st_mtime_ns for path in kept.rglob("judged/0/*.decisions")}
    for name in ("metadata/manifest.json", NAME):
        (tmp_path / "out" / name).unlink()
    assert curated(source, tmp_path / "out", *flags) == (dataset / NAME).read_bytes()
    same = [path for path, time in times.items() if path.stat().st_mtime_ns == time]
    assert len(same) == len(times) - 1  # all but the damaged one; the lost one is not listed


@pytest.mark.long
@pytest.mark.parametrize("folder", ["judged/0", "statistics"])
def test_a_killed_build_resumes_to_the_same_statistics(
    source: Path, dataset: Path, tmp_path: Path, folder: str
) -> None:
    output, flags = tmp_path / "out", ("--block_bytes=1", "--keep_checkpoints")
    command = [sys.executable, "-m", "fineshards", "build", f"--input={source}", *FLAGS, *flags]
    command += [f"--output={output}", f"--recipe={source.parent / 'recipe.toml'}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        while process.poll() is None and len([*output.glob(f"checkpoints/*/{folder}/*")]) < 4:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (output / "metadata/manifest.json").exists()
    assert curated(source, output, *flags) == (dataset / NAME).read_bytes()


@pytest.mark.long
def test_an_append_has_statistics_of_its_own(
    source: Path, rows: list[list[Row]], tmp_path: Path
) -> None:
    files = sorted(source.iterdir())
    output = tmp_path / "out"
    build_of(output, files[0], *FLAGS, "--statistics")
    first = (output / NAME).read_bytes()
    for file in files[1:]:
        append(output, file)
    assert (output / NAME).read_bytes() == first
    names = [NAME, *(f"metadata/generations/000{n}.statistics.parquet" for n in (2, 3))]
    tables = [read(output, name) for name in names]
    check(tables, expected(rows, with_recipe=False))
    assert [set(table["generation"].to_pylist()) for table in tables] == [{1}, {2}, {3}]
    for generation in (None, 1, 2, 3):
        assert fineshards.verify(output, generation=generation).problems == []
    build_of(tmp_path / "at-once", source, *FLAGS, "--statistics")
    whole, grown = stats(str(tmp_path / "at-once")), stats(str(output))
    assert grown.counts == whole.counts
    assert (grown.generations, grown.hosts_of) == (3, None)
    assert stats(str(output), generation=1).generations == 1


def test_a_redaction_keeps_the_statistics(source: Path, tmp_path: Path, in_process: Any) -> None:
    build_of(tmp_path / "out", source, *FLAGS, "--statistics")
    assert in_process("redact", tmp_path / "out", "--documents", "0").returncode == 0
    names = [file.name for file in Manifest.load_finished(opened(tmp_path / "out")).metadata]
    assert NAME in names
    assert in_process("verify", tmp_path / "out").returncode == 0


def test_verify_finds_statistics_that_changed(dataset: Path, tmp_path: Path) -> None:
    output = Path(shutil.copytree(dataset, tmp_path / "out"))
    content = bytearray((output / NAME).read_bytes())
    content[100] ^= 1
    (output / NAME).write_bytes(content)
    (problem,) = fineshards.verify(output).problems
    assert problem.startswith(f"{NAME} has crc32c")
    (output / NAME).unlink()
    assert fineshards.verify(output).problems == [f"{NAME} is missing"]


def test_statistics_that_contradict_the_manifest_are_found(dataset: Path) -> None:
    manifest, table = Manifest.load_finished(opened(dataset)), read(dataset)
    counts, recipe = manifest.counts(), manifest.settings.recipe
    assert list(statistics.contradictions([table], counts, recipe)) == []
    twice = list(statistics.contradictions([table, table], counts, recipe))
    assert len(twice) == 1 + len(counts.dropped)
    assert "step 1 length dropped (min_chars)" in twice[1]


def opened(folder: Path) -> Any:
    return open_storage(str(folder))


def test_stats_shows_all_and_a_step(dataset: Path) -> None:
    lines = describe_stats(stats(str(dataset)))
    text = "\n".join(lines)
    assert re.search(r"1 length +[\d,]+ in +[\d,]+ kept +[\d,]+ dropped", text)
    assert "documents of the dataset, by length in tokens" in text
    one = stats(str(dataset), step=3)
    assert {count.step for count in one.counts} == {2}
    assert "exact_text" in "\n".join(describe_stats(one))
    with pytest.raises(UsageError, match="it has 4 steps"):
        stats(str(dataset), step=5)


def test_hosts_beyond_the_top_are_one_row(tmp_path: Path) -> None:
    draw = random.Random(2)
    hosts = [f"h{int(draw.paretovariate(0.2)) % 3000}.example" for _ in range(6000)]
    texts = [f"text {number}" for number in range(len(hosts))]
    table = pa.table({"text": texts, "url": [f"http://{host}/" for host in hosts]})
    for part in range(2):
        rows = table.slice(part * 3000, 3000)
        pq.write_table(rows, tmp_path / f"{part}.parquet", row_group_size=100)
    build_of(tmp_path / "out", *tmp_path.glob("*.parquet"), "--statistics", "--block_bytes=1")
    listed = {
        row["value"]: row["documents"]
        for row in read(tmp_path / "out").to_pylist()
        if row["measure"] == "host"
    }
    counts = Counter(hosts)
    top = sorted(counts, key=lambda host: (-counts[host], host))[: statistics.TOP_HOSTS]
    assert len(counts) > statistics.TOP_HOSTS
    others = len(hosts) - sum(counts[host] for host in top)
    assert listed == {host: counts[host] for host in top} | {OTHER_HOSTS: others}
    # Hosts of two generations cannot be added up then.
    more = pa.table({"text": ["more"], "url": ["http://new.example/"]})
    pq.write_table(more, tmp_path / "more.parquet")
    append(tmp_path / "out", tmp_path / "more.parquet")
    found = stats(str(tmp_path / "out"))
    named = [count.value for count in found.counts if count.measure == "host"]
    assert (found.hosts_of, named) == (2, ["new.example"])


# -- the parts

texts = st.lists(st.text(st.sampled_from("ab \n\t\r\x0b\x0c\x1c\x85\xa0é"), max_size=12))


@given(texts, st.integers(0, 3))
def test_words_and_lines_are_those_of_plain_python(found: list[str], first: int) -> None:
    array = pa.array(found, pa.large_string()).slice(first)
    numbers = measure(array, np.arange(len(array)))
    for number, text in enumerate(found[first:]):
        content = text.encode()
        lines = len(text.removesuffix("\n").split("\n")) if text else 0
        assert numbers[number].tolist() == [1, len(content), len(content.split()), lines, number]


@st.composite
def tallies(draw: Callable[[Any], Any]) -> list[pa.Table]:
    """Tables of documents, each of which has a few hosts, labels and reasons."""
    return [draw(st.builds(_table, st.lists(documents, max_size=8))) for _ in range(5)]


documents = st.tuples(
    st.text("ab ", max_size=3), st.sampled_from("abcdefgh"), st.sampled_from("ijklmn")
)


def _table(found: Sequence[tuple[str, str, str]]) -> pa.Table:
    tally, rows = Tally(), np.arange(len(found))
    texts = pa.array([text for text, _, _ in found], pa.large_string())
    labels = {"language": pa.array([label for _, _, label in found], pa.string())}
    urls = pa.array([f"x://{host}" for _, host, _ in found], pa.string())
    traits = Traits.of(rows, labels, {"url": urls})
    tally.add_dataset(texts, rows, traits)
    tally.add("dropped", measure(texts), traits, 0, [host for _, host, _ in found])
    return tally.table()


@pytest.mark.long
@given(tallies(), st.randoms(use_true_random=False))
def test_any_way_of_adding_up_gives_the_same(tables: list[pa.Table], draw: random.Random) -> None:
    """With limits that are reached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "MAX_VALUES", 3)
        patch.setattr(statistics, "TOP_HOSTS", 3)
        at_once = to_bytes(finished(with_top_hosts(merged(tables)), 1, ["step"]))
        parts = list(tables)
        while len(parts) > 1:
            draw.shuffle(parts)
            size = draw.randint(2, 3)
            parts = [*parts[size:], merged(parts[:size])]
        assert to_bytes(finished(with_top_hosts(parts[0]), 1, ["step"])) == at_once
        # Hosts by range, each with its top ones, and then all.
        rest, hosts = hosts_by_range(merged(tables), 4)
        parts = [rest, *(with_top_hosts(table) for _, table in hosts)]
        while len(parts) > 1:
            draw.shuffle(parts)
            parts = [*parts[2:], with_top_hosts(merged(parts[:2]))]
        assert to_bytes(finished(parts[0], 1, ["step"])) == at_once


def test_a_label_with_many_values_and_a_step_with_many_reasons_have_one() -> None:
    count = statistics.MAX_VALUES + 1
    rows = np.arange(count)
    names = [str(number) for number in range(count)]
    for lacking in (0, 1):
        tally = Tally()
        traits = Traits.of(rows[lacking:], {"dump": pa.array(names[lacking:])}, {})
        measured = measure(pa.array(names[lacking:], pa.large_string()))
        tally.add("dropped", measured, traits, 0, names[lacking:])
        found = tally.table().to_pylist()
        values = {row["value"] for row in found if row["measure"] == "dump"}
        reasons = {row["reason"] for row in found}
        assert (values == {MANY_VALUES}) == (reasons == {MANY_VALUES}) == (lacking == 0)
        assert sum(row["documents"] for row in found if row["measure"] == "dump") == len(measured)


@pytest.mark.long
def test_a_tally_of_many_hosts_stays_exact() -> None:
    def batches() -> Iterator[list[str]]:
        draw = random.Random(3)
        for _ in range(60):
            yield [f"h{draw.randrange(20_000)}" for _ in range(5_000)]

    tally, counts = Tally(), Counter[str]()
    for hosts in batches():
        counts.update(hosts)
        texts = pa.array([""] * len(hosts), pa.large_string())
        urls = pa.array([f"x://{host}" for host in hosts])
        traits = Traits(np.arange(len(hosts)), {}, None, urls)
        tally.add_dataset(texts, np.ones(len(hosts), np.int64), traits)
    listed = {
        row["value"]: row["documents"]
        for row in tally.table().to_pylist()
        if row["measure"] == "host"
    }
    assert listed == counts
