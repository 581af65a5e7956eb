"""Datasets that grow: build A, append B, append C has the documents and tokens of build A B C."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from support.growing import (
    KEYS,
    Row,
    append,
    build,
    content_of,
    made_up_rows,
    write_parts,
    write_rows,
)
from support.oracle import (
    ENCODING,
    files_in,
    joined,
    oracle,
    oracle_by_document,
    shards_in,
    side_of,
    streams_of,
)
from support.tokenizer_files import save, train

import fineshards
from fineshards import TokenDataset
from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.append import read_as_before
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.record import replace
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing

ROWS = made_up_rows(1, 120)


def expected_shards(parts: list[list[Row]], flags: dict[str, str]) -> dict[str, bytes]:
    """The oracle's shards of each part, which begins new ones."""
    size, made = int(flags["shard_tokens"]), []
    for number, rows in enumerate(parts):
        if "test_shards" in flags:
            texts = [row["text"] for row in rows]
            made.append(oracle(texts, size, 0 if number else int(flags["test_shards"])))
        else:
            files = [*([[]] * number), rows]
            key = KEYS[flags["split_key"]]
            made.append(oracle_by_document(files, size, flags["test_fraction"], key))
    return joined(made)


def check_growth(tmp_path: Path, parts: list[list[Row]], flags: dict[str, str]) -> Manifest:
    """Builds the first part and appends the others; returns the last manifest."""
    endings = (".parquet", ".jsonl", ".jsonl.gz")
    files = [
        write_rows(tmp_path / f"in/{number}{endings[number % 3 if len(rows) % 2 else 0]}", rows)
        for number, rows in enumerate(parts)
    ]
    given = [f"--{name}={value}" for name, value in flags.items()]
    build(tmp_path / "at-once", *files, *given)
    grown = tmp_path / "grown"
    build(grown, files[0], *given)
    for generation, file in enumerate(files[1:], 2):
        published = files_in(grown)
        del published["metadata/manifest.json"]
        append(grown, file)
        assert published.items() <= files_in(grown).items()
        manifest = Manifest.load_finished(open_storage(str(grown)))
        assert manifest.generation == generation
    assert shards_in(grown) == expected_shards(parts, flags)
    tokens = [streams_of(shards_in(tmp_path / name)) for name in ("grown", "at-once")]
    # With --test_shards an append adds to train only, also to a build that did not fill them.
    if "test_fraction" in flags or tokens[0] == tokens[1]:
        assert content_of(grown) == content_of(tmp_path / "at-once")
    assert b"".join(tokens[0].values()) == b"".join(tokens[1].values())
    assert not (grown / "checkpoints").exists()
    for generation in range(1, len(parts) + 1):
        assert fineshards.verify(grown, sample=100, generation=generation).problems == []
    return manifest


BY_TEXT = {"test_fraction": "0.3", "split_key": "text"}
BY_SHARD = {"test_shards": "2"}


@pytest.mark.parametrize(
    ("cuts", "flags"),
    [
        ((40, 80), BY_TEXT | {"shard_tokens": "700"}),
        ((40, 80), BY_SHARD | {"shard_tokens": "700", "block_bytes": "1"}),
        ((119, 119), BY_TEXT | {"shard_tokens": "100000", "block_bytes": "2000"}),
        ((1, 2), BY_SHARD | {"shard_tokens": "2500"}),
        ((60, 61), {"test_fraction": "0.5", "split_key": "row", "shard_tokens": "300"}),
        pytest.param(
            (3, 90),
            {"test_fraction": "0.5", "split_key": "host", "shard_tokens": "333"},
            marks=pytest.mark.kills,
        ),
        ((17, 18), {"test_fraction": "0.1", "split_key": "id", "shard_tokens": "1000"}),
        pytest.param(
            (1, 119),
            {"test_fraction": "0.4", "split_key": "column:group", "shard_tokens": "512"},
            marks=pytest.mark.kills,
        ),
    ],
)
def test_a_dataset_in_three_parts_is_the_dataset_of_all_files(
    tmp_path: Path, cuts: tuple[int, int], flags: dict[str, str]
) -> None:
    first, second = cuts
    parts = [ROWS[:first], ROWS[first:second], ROWS[second:]]
    check_growth(tmp_path, parts, flags)


@pytest.mark.kills
@pytest.mark.parametrize("seed", range(10))
def test_a_corpus_cut_anywhere(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    first, second = sorted(draw.sample(range(1, len(ROWS)), 2))
    flags = {"shard_tokens": str(draw.choice([50, 200, 999, 5000, 10**6]))}
    if draw.random() < 0.5:
        flags["test_shards"] = str(draw.choice([0, 1, 3, 1000]))
    else:
        flags["test_fraction"] = draw.choice(["0", "0.01", "0.3", "1/3", "1"])
        flags["split_key"] = draw.choice(sorted(KEYS))
    flags["block_bytes"] = str(draw.choice([1, 700, 10**9]))
    check_growth(tmp_path, [ROWS[:first], ROWS[first:second], ROWS[second:]], flags)


def tokens_of(rows: list[Row]) -> int:
    return sum(1 + len(ENCODING.encode_ordinary(row["text"])) for row in rows if row["text"])


def test_appends_that_add_nothing_or_a_few_documents(tmp_path: Path) -> None:
    texts = ["one two", "three", "four five six seven", "eight", "nine ten", "eleven", "twelve"]
    rows = [{"text": text} for text in texts]
    size = tokens_of(rows[:3])
    source = tmp_path / "in"
    source.mkdir()
    columns = pa.schema([("text", pa.string())])
    pq.write_table(columns.empty_table(), source / "1-no-rows.parquet")
    pq.ParquetWriter(source / "2-no-row-groups.parquet", columns).close()
    (source / "3-empty.jsonl").touch()
    write_rows(source / "4-no-texts.jsonl", [{"text": None}, {"text": None}])
    write_rows(source / "5-fills.jsonl", rows[1:3])
    write_rows(source / "6-begins.parquet", rows[3:4])
    write_rows(source / "7-two.jsonl.gz", rows[4:])
    write_rows(source / "0-first.jsonl", rows[:1])
    files = sorted(source.iterdir())
    grown = tmp_path / "grown"
    flags = [f"--shard_tokens={size}", "--test_shards=1"]
    build(grown, files[0], *flags)
    for file in files[1:]:
        append(grown, file)
    build(tmp_path / "at-once", source, *flags)
    assert b"".join(streams_of(shards_in(grown)).values()) == b"".join(
        streams_of(shards_in(tmp_path / "at-once")).values()
    )
    made = [oracle(texts[:1], size, 1), *(oracle(t, size, 0) for t in (texts[1:3], texts[3:4]))]
    assert shards_in(grown) == joined([*made, oracle(texts[4:], size, 0)])
    for generation in range(1, 9):
        assert fineshards.verify(grown, generation=generation).problems == []
        manifest = Manifest.load_finished(open_storage(str(grown)), generation)
        documents = [1, 1, 1, 1, 1, 3, 4, 7][generation - 1]
        assert manifest.totals["tokens"] == tokens_of(rows[:documents])
        # Not full, and nothing is added to it.
        assert manifest.splits["test"]["shards"] == 1


def test_a_split_that_was_empty_gets_its_first_shard(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}"} for number in range(40)]
    sides: dict[str, list[Row]] = {"test": [], "train": []}
    for row in rows:
        sides[side_of(row["text"], "0.5")].append(row)
    first = write_rows(tmp_path / "in/0.jsonl", sides["train"])
    second = write_rows(tmp_path / "in/1.jsonl", sides["test"])
    grown = tmp_path / "grown"
    flags = ["--shard_tokens=20", "--test_fraction=0.5"]
    build(grown, first, *flags)
    with pytest.raises(UsageError, match="the test split is empty"):
        TokenDataset(grown, "test", sequence_length=4)
    append(grown, second)
    build(tmp_path / "at-once", first, second, *flags)
    assert content_of(grown) == content_of(tmp_path / "at-once")
    assert len(TokenDataset(grown, "test", sequence_length=4)) > 10
    with pytest.raises(UsageError, match="the test split is empty"):
        TokenDataset(grown, "test", sequence_length=4, generation=1)


def test_rows_that_cannot_be_read_are_listed_in_every_generation(tmp_path: Path) -> None:
    files = write_parts(tmp_path / "in", ROWS[:27], 9, "jsonl")
    for number, path in enumerate(files):
        with path.open("a") as file:
            file.write("no json\n" * number)
    flags = ["--shard_tokens=300", "--max_bad_rows=5", "--test_fraction=0.5"]
    build(tmp_path / "at-once", *files, *flags)
    grown = tmp_path / "grown"
    build(grown, files[0], *flags)
    append(grown, files[1], "--max_bad_rows=1")
    append(grown, files[2], "--max_bad_rows=2")
    assert content_of(grown) == content_of(tmp_path / "at-once")
    for generation in (1, 2, 3):
        assert fineshards.verify(grown, generation=generation).problems == []
    manifest = Manifest.load_finished(open_storage(str(grown)))
    assert manifest.totals["rejected"] == 3


def test_tokens_of_two_bytes_grow_too(tmp_path: Path) -> None:
    tokenizer = save(train("gpt2", [row["text"] or "" for row in ROWS]), tmp_path / "mine.json")
    files = write_parts(tmp_path / "in", ROWS[:60], 20)
    flags = [
        f"--tokenizer={tokenizer}",
        "--dtype=uint16",
        "--shard_tokens=1000",
        "--test_fraction=0.3",
    ]
    build(tmp_path / "at-once", *files, *flags)
    grown = tmp_path / "grown"
    build(grown, files[0], *flags)
    tokenizer.unlink()  # The dataset has it.
    append(grown, files[1])
    append(grown, files[2])
    assert np.load(grown / "train/train_0000.npy").dtype == np.uint16
    assert content_of(grown) == content_of(tmp_path / "at-once")
    assert fineshards.verify(grown, sample=100).problems == []


def test_old_sources_need_not_exist(tmp_path: Path) -> None:
    files = write_parts(tmp_path / "in", ROWS[:60], 20)
    flags = ["--shard_tokens=700", "--test_fraction=0.3"]
    build(tmp_path / "at-once", *files, *flags)
    grown = tmp_path / "grown"
    build(grown, files[0], *flags)
    for number in (1, 2):
        files[number - 1].unlink()
        append(grown, files[number])
    assert content_of(grown) == content_of(tmp_path / "at-once")
    assert fineshards.verify(grown).problems == []


@pytest.mark.parametrize("split", ["--test_fraction=0.3", "--test_shards=1"])
def test_each_generation_is_shuffled_within_itself(tmp_path: Path, split: str) -> None:
    parts = [ROWS[:50], ROWS[50:53], ROWS[53:]]
    files = [
        write_rows(tmp_path / f"in/{number}.parquet", rows) for number, rows in enumerate(parts)
    ]
    grown = tmp_path / "grown"
    build(grown, files[0], "--shard_tokens=700", split, "--shuffle_seed=5", "--block_bytes=1")
    first = shards_in(grown)
    append(grown, files[1])
    append(grown, files[2], "--memory_bytes=2000")
    made = []
    for number, part in enumerate(parts):
        rows = shuffled(number, part, 5)
        if split == "--test_shards=1":
            made.append(oracle([row["text"] for row in rows], 700, 0 if number else 1))
        else:
            made.append(oracle_by_document([rows], 700, "0.3", KEYS["text"]))
    assert made[0] == first
    assert shards_in(grown) == joined(made)
    for generation in (1, 2, 3):
        assert fineshards.verify(grown, sample=100, generation=generation).problems == []


def shuffled(file: int, rows: list[Row], seed: int) -> list[Row]:
    """The rows of a file with a text, in the order of their keys."""

    def key(row: int) -> bytes:
        return xxhash.xxh3_128_digest(f"{file}:{row}".encode(), seed=seed)

    return [rows[row] for row in sorted(range(len(rows)), key=key) if rows[row]["text"] is not None]


def test_files_are_read_as_those_of_the_dataset_were(tmp_path: Path) -> None:
    """Quotes are text in TSV, unless the dataset was built with `--quoting quotes`."""
    files = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    for path in files:
        path.write_text(f'text\tid\n"of {path.name}"\t{path.name}\n')
    build(tmp_path / "grown", files[0], "--quoting=quotes", "--test_fraction=0")
    append(tmp_path / "grown", files[1])
    dataset = TokenDataset(tmp_path / "grown", sequence_length=1)
    assert [dataset.decode(dataset.document(n).tokens) for n in range(2)] == [
        "of a.tsv",
        "of b.tsv",
    ]
    # Its libraries are installed with an extra, so nothing but the choice is tested here.
    config = BuildConfig(input="a.warc", output="out")
    job = Manifest.load_finished(open_storage(str(tmp_path / "grown"))).job
    pages = replace(job.files[0], format="warc", extraction="trafilatura: fastwarc 2.0.1, rules 5")
    now = read_as_before(config, replace(job, files=(pages, job.files[1])), [pages])
    assert now.extract == "trafilatura"
