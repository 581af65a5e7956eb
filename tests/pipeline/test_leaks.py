"""Leaks: exact duplicates between test and train, counted against plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st
from support.build_here import build_here
from support.damage import edit_manifest, edit_table
from support.faulty_proxy import Proxy
from support.growing import KEYS
from support.oracle import ENCODING, side_of

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError
from fineshards.pipeline.launch import refuse_leaks
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Leaks
from fineshards.shards.tables.leaks import (
    Comparison,
    LeakCount,
    count_leaks,
    count_texts,
    number_of_ranges,
    parts_of,
)
from fineshards.storage.open import open_storage
from fineshards.transforms.count_leaks import CountLeaks
from fineshards.verification.check_leaks import check_leaks
from fineshards.wording import warn_of_leaks
from fineshards.worker.work import Work

pytestmark = pytest.mark.growing

Row = dict[str, Any]


def expected_leaks(documents: Iterable[tuple[str, object]]) -> Leaks:
    """The definition: documents, as (split, text), whose text is also in the other split."""
    listed = list(documents)
    texts = {split: {text for side, text in listed if side == split} for split in ("test", "train")}
    shared = texts["test"] & texts["train"]
    found = Counter(split for split, text in listed if text in shared)
    return Leaks(found["test"], found["train"])


# Counting.

# Few values, so that there are duplicates, at both ends of the hashes and between.
hashes = st.sampled_from([0, 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
shards = st.lists(st.tuples(st.sampled_from(["test", "train"]), st.lists(hashes)), max_size=8)


@given(shards, st.integers(1, 9), st.randoms(use_true_random=False))
def test_leaks_are_counted_however_hashes_are_cut_into_ranges(
    made_up: list[tuple[str, list[int]]], ranges: int, order: random.Random
) -> None:
    by_range = defaultdict(list)
    for number, (split, found) in enumerate(made_up):
        texts = count_texts(np.array(found, np.uint64))
        for key, part in parts_of(split, f"{split}-{number}", texts, ranges):
            assert 0 <= key < ranges
            by_range[key].append(part)
    for parts in by_range.values():
        order.shuffle(parts)
    total = LeakCount.total([count_leaks(parts) for parts in by_range.values()])
    documents = [(split, text) for split, found in made_up for text in found]
    assert total.leaks == expected_leaks(documents)
    shared = {text for _, text in documents if ("test", text) in documents}
    shared &= {text for _, text in documents if ("train", text) in documents}
    if not shared:
        assert total.example is None
        return
    assert total.example is not None
    assert total.example.text_hash == min(shared)
    for shard in (total.example.test_shard, total.example.train_shard):
        assert min(shared) in made_up[int(shard.partition("-")[2])][1]


def test_a_text_of_very_many_documents_is_one_entry() -> None:
    texts = count_texts(np.zeros(100_000, np.uint64))
    ((_, part),) = parts_of("test", "a", texts, 5)
    assert len(part.texts) == 12
    (other,) = (part for _, part in parts_of("train", "b", texts, 5))
    assert count_leaks([part, other]).leaks == Leaks(100_000, 100_000)


@pytest.mark.parametrize(
    ("documents", "most", "ranges"),
    [(0, 10, 1), (10, 10, 1), (11, 10, 2), (10**12, 1 << 24, 59605)],
)
def test_there_are_as_many_ranges_as_memory_asks_for(
    documents: int, most: int, ranges: int
) -> None:
    assert number_of_ranges(documents, most) == ranges


# Builds.


def made_up_rows(seed: int, count: int) -> list[Row]:
    """Rows of which many have the same text: none, a word, or some."""
    draw = random.Random(seed)
    texts = ["", "a", "same " * 40] + [f"text {number}" for number in range(count)]
    return [
        {
            "text": None if draw.random() < 0.05 else draw.choice(texts),
            "id": f"id{seed}-{number}",
            "url": draw.choice([None, "https://a.example/", "https://b.example/", "https://c/"]),
            "group": draw.choice([None, 1, 2, 3]),
        }
        for number in range(count)
    ]


FILES = [made_up_rows(1, 90), made_up_rows(2, 40)]


def write_files(folder: Path, files: list[list[Row]]) -> Path:
    for number, rows in enumerate(files):
        path = folder / f"in-{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=17)
    return folder / "in-*.parquet"


def by_key(key: str, fraction: str) -> Leaks:
    sides = []
    for file, rows in enumerate(FILES):
        for number, row in enumerate(rows):
            if row["text"] is not None:
                found = KEYS[key](row)
                own = f"{file}:{number}" if found is None else found
                sides.append((side_of(own, fraction), row["text"]))
    return expected_leaks(sides)


def by_shards(files: list[list[Row]], test_shards: int, shard_tokens: int) -> Leaks:
    sides, position = [], 0
    for row in (row for rows in files for row in rows if row["text"] is not None):
        sides.append(("test" if position < test_shards * shard_tokens else "train", row["text"]))
        position += 1 + len(ENCODING.encode_ordinary(row["text"]))
    return expected_leaks(sides)


@pytest.mark.parametrize("key", ["id", "row", "host", "column:group"])
def test_a_build_counts_the_leaks_of_its_split_key(
    tmp_path: Path, build: Callable[..., int], capsys: pytest.CaptureFixture[str], key: str
) -> None:
    output, expected = tmp_path / "out", by_key(key, "0.4")
    assert min(expected.test_documents, expected.train_documents) > 0
    flags = ["--test_fraction=0.4", f"--split_key={key}", "--shard_tokens=200", "--block_bytes=900"]
    if key == "host":
        flags.append("--shuffle_seed=5")  # the order changes nothing
    assert build(write_files(tmp_path, FILES), output, *flags) == 0
    storage = open_storage(str(output))
    manifest = Manifest.load_finished(storage)
    assert manifest.leaks == expected
    warning = f"warning: {warn_of_leaks(expected, manifest.settings.split)}\n"
    assert capsys.readouterr().out.endswith(warning)
    assert "--split_key text" in warning
    assert fineshards.verify(output, sample=100).problems == []
    # However many passes that takes.
    assert list(check_leaks(storage, manifest, most=3)) == []
    # The same command has nothing to do, and warns again.
    assert build(tmp_path / "in-*.parquet", output, *flags) == 0
    assert capsys.readouterr().out.endswith(warning)


@pytest.mark.parametrize("test_shards", [1, 2])
def test_a_number_of_test_shards_leaks_too(tmp_path: Path, test_shards: int) -> None:
    expected = by_shards(FILES, test_shards, 200)
    assert min(expected.test_documents, expected.train_documents) > 0
    # By worker processes.
    manifest = build_here(
        input=write_files(tmp_path, FILES),
        output=tmp_path / "out",
        test_shards=test_shards,
        shard_tokens=200,
    )
    assert manifest.leaks == expected
    assert fineshards.verify(tmp_path / "out", sample=100).problems == []


def test_a_document_across_the_border_is_in_test(tmp_path: Path) -> None:
    # 1 + 6 tokens; the border is in the second document, most of which is in train.
    rows = [{"text": text} for text in ("one", "two " * 6, "three", "four " * 6)]
    alone = build_here(
        input=write_files(tmp_path, [rows]), output=tmp_path / "a", test_shards=1, shard_tokens=4
    )
    table = pq.read_table(tmp_path / "a/metadata/documents/train_0000.parquet")
    assert table["start"][0].as_py() > 0
    assert alone.leaks == Leaks(0, 0), "its own rest is not a duplicate of it"
    edit_table(
        tmp_path / "a",
        "train/train_0000.npy",
        lambda columns: columns["text_hash"].__setitem__(0, columns["text_hash"][0] ^ 1),
    )
    # It differs from its beginning in the shard before, and from its end in the one after.
    problems = fineshards.verify(tmp_path / "a").problems
    assert len(problems) == 2
    assert all("but the previous shard ended in row 1" in problem for problem in problems)
    rows += [rows[1], rows[1], rows[3]]
    again = build_here(
        input=write_files(tmp_path, [rows]), output=tmp_path / "b", test_shards=1, shard_tokens=4
    )
    assert again.leaks == Leaks(1, 2) == by_shards([rows], 1, 4)


def test_nothing_is_counted_where_nothing_can_leak(
    tmp_path: Path, build: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_files(tmp_path, FILES), tmp_path / "out"
    flags = ["--test_fraction=0.4", "--fail_on_leak", "--json"]
    assert by_key("text", "0.4") == Leaks(0, 0)
    assert build(source, output, *flags) == 0
    assert json.loads(capsys.readouterr().out)["leaks"] is None
    content = json.loads((output / "metadata/manifest.json").read_text())
    assert content["leaks"] is None
    assert main(["inspect", str(output)]) == 0
    assert "leaks" not in capsys.readouterr().out
    assert main(["verify", str(output)]) == 0


@pytest.mark.cloud
def test_leaks_are_counted_on_gs(
    tmp_path: Path, cloud: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_files(tmp_path, FILES), "gs://data/out"
    flags = ["--test_fraction=0.4", "--split_key=row", "--shard_tokens=400"]
    assert main(["build", f"--input={source}", f"--output={output}", *flags, "--fail_on_leak"]) == 1
    assert "metadata/manifest.json" not in " ".join(cloud.names("data"))
    assert "(--fail_on_leak)" in capsys.readouterr().err
    assert main(["build", f"--input={source}", f"--output={output}", *flags]) == 0
    assert Manifest.load_finished(open_storage(output)).leaks == by_key("row", "0.4")
    assert fineshards.verify(output).ok


# In one range; in several, with the texts of test in memory, and without.
@pytest.mark.parametrize(
    ("most", "ranges", "fits"), [(10**6, 1, True), (55, 3, True), (9, 14, False)]
)
def test_leaks_are_counted_on_a_runner(tmp_path: Path, most: int, ranges: int, fits: bool) -> None:
    source, output = write_files(tmp_path, FILES), tmp_path / "out"
    manifest = build_here(
        input=source, output=output, test_fraction=0.4, split_key="row", shard_tokens=200
    )
    storage = open_storage(str(output))
    job = Job.load(storage)
    assert job is not None
    work = Work(Checkpoints.of(storage, job), job.settings, len(job.files))
    comparison = Comparison.of(manifest.shards, most)
    assert (comparison.ranges, comparison.test_shards is not None) == (ranges, fits)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        # The shards of a dataset that grows come from two sides.
        parts = [
            pipeline | f"Create{side}" >> beam.Create(manifest.shards[side::2]) for side in (0, 1)
        ]
        found = parts | beam.Flatten() | CountLeaks(work, most)
        leaks = found | beam.Map(lambda total: total.leaks)
        assert_that(leaks, equal_to([by_key("row", "0.4")]))


# --fail_on_leak.


def test_fail_on_leak_finishes_nothing_and_the_build_goes_on_without_it(
    tmp_path: Path, build: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [[{"text": f"text {number}"} for number in range(50)] for _ in range(2)]
    source, output = write_files(tmp_path, files), tmp_path / "out"
    flags = ["--test_fraction=0.4", "--split_key=row", "--shard_tokens=100"]
    assert build(source, output, *flags, "--fail_on_leak") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert not (output / "metadata/manifest.json").exists()
    leaks = expected_leaks(
        (side_of(f"{file}:{row}", "0.4"), row) for file in range(2) for row in range(50)
    )
    assert said.startswith(
        f"fineshards: {leaks.test_documents} test documents have the same text as "
        f"{leaks.train_documents} train documents, such as row "
    )
    # The example is a row of one file, and the same row of the other one.
    words = said.partition("such as row ")[2].split()
    (first, second) = ((words[0], words[2]), (words[6], words[8]))
    assert first[0] == second[0]
    assert {first[1], second[1]} == {str(tmp_path / f"in-{number}.parquet") for number in (0, 1)}
    for (row, path), split in ((first, "test"), (second, "train")):
        assert side_of(f"{path[-9]}:{row}", "0.4") == split
    assert "--split_key text and --overwrite" in said

    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in output.rglob("*.npy")}

    before = times()
    assert before
    assert build(source, output, *flags) == 0
    assert times() == before
    assert "warning: " in capsys.readouterr().out
    assert fineshards.verify(output).ok
    # A finished dataset does not pass either.
    assert build(source, output, *flags, "--fail_on_leak") == 1
    assert " is finished, but " in capsys.readouterr().err
    assert main(["inspect", str(output)]) == 0
    assert f"  leaks      {leaks.test_documents} test documents have" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [{"test_shards": 0}, {"test_shards": 99}])
def test_an_empty_split_leaks_nothing(tmp_path: Path, flags: dict[str, Any]) -> None:
    source = write_files(tmp_path, FILES)
    assert build_here(input=source, output=tmp_path / "o", **flags).leaks == Leaks(0, 0)
    assert fineshards.verify(tmp_path / "o").ok


def test_fail_on_leak_passes_where_nothing_leaks(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}"} for number in range(60)]
    manifest = build_here(
        input=write_files(tmp_path, [rows]),
        output=tmp_path / "out",
        test_shards=1,
        shard_tokens=100,
        fail_on_leak=True,
    )
    assert manifest.leaks == Leaks(0, 0)
    refuse_leaks(manifest, "out")
    # Up to version 2 they were not counted.
    with pytest.raises(FineshardsError, match="did not count leaks"):
        refuse_leaks(replace(manifest, version=2, leaks=None), "out")


# Verify.


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    build_here(
        input=write_files(tmp_path, FILES),
        output=tmp_path / "out",
        test_fraction=0.4,
        split_key="row",
        shard_tokens=10**6,
    )
    return tmp_path / "out"


def test_verify_finds_another_count(dataset: Path) -> None:
    edit_manifest(dataset, lambda content: content["leaks"].update(train_documents=1))
    leaks = by_key("row", "0.4")
    assert fineshards.verify(dataset).problems == [
        f"by text_hash in the document tables {leaks.test_documents} test documents have the same "
        f"text as {leaks.train_documents} train documents; metadata/manifest.json says "
        f"{leaks.test_documents} and 1"
    ]


@pytest.mark.parametrize(
    ("leaks", "problem"),
    [
        (None, "it counts leaks where there can be none, or does not where there can be"),
        ({"test_documents": 0, "train_documents": 3}, "documents of one split leak, and none"),
        ({"test_documents": 10**6, "train_documents": 3}, "1000000 documents of test leak, more"),
    ],
)
def test_a_count_that_cannot_be_is_a_damaged_manifest(
    dataset: Path, leaks: object, problem: str
) -> None:
    edit_manifest(dataset, lambda content: content.update(leaks=leaks))
    assert any(problem in found for found in fineshards.verify(dataset).problems)


def test_verify_finds_a_text_hash_that_is_not_of_the_text(dataset: Path) -> None:
    in_test = pq.read_table(dataset / "metadata/documents/test_0000.parquet")["text_hash"]

    def edit(columns: dict[str, list[Any]]) -> None:
        # A text that occurs once, so that the number of leaks stays the same.
        found = Counter(columns["text_hash"] + in_test.to_pylist())
        once = [number for number, text in enumerate(columns["text_hash"]) if found[text] == 1]
        columns["text_hash"][once[0]] ^= 1

    edit_table(dataset, "train/train_0000.npy", edit)
    assert fineshards.verify(dataset).ok
    (problem,) = fineshards.verify(dataset, sample=100).problems
    assert "its text_hash is" in problem
