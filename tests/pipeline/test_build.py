"""Every shard has the bytes of the oracle, whatever varies between two runs."""

import bz2
import csv
import gzip
import json
import logging
import lzma
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from apache_beam import typehints
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkout import ROOT
from support.oracle import ENCODING, EOT, cut, oracle, oracle_by_text, read_texts, shards_in

from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.pipeline.graph import build_pipeline
from fineshards.pipeline.launch import prepare
from fineshards.shards.counts import BlockSummary, Counts, LabelCount, Sums
from fineshards.shards.job.records import Block, Piece, ShardRecord, TokenBlock
from fineshards.shards.shuffle_order import Fragment
from fineshards.worker.work import Work

Build = Callable[..., int]
WORD = " hello"  # one token of cl100k_base, even when repeated


def write_texts(path: Path, texts: list[str | None], **options: object) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, **options)
    return path


def text_of_tokens(count: int) -> str:
    """A text whose document has exactly `count` tokens, including EOT."""
    text = WORD * (count - 1)
    assert len(ENCODING.encode_ordinary(text)) == count - 1
    return text


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [
        ["--direct_runner_bundle_repeat=2"],
        ["--runner=BundleBasedDirectRunner"],
        ["--block_bytes=1"],
        ["--block_bytes=1000000000"],
    ],
    ids=lambda flags: " ".join(flags),
)
def test_bytes_do_not_depend_on_how_the_job_runs(
    build: Build, sample: Path, tmp_path: Path, flags: list[str]
) -> None:
    assert build(sample, tmp_path, "--shard_tokens=50000", "--test_fraction=0.1", *flags) == 0
    expected = oracle_by_text(read_texts(sample), shard_tokens=50_000, fraction="0.1")
    assert shards_in(tmp_path) == expected


def leaves_that_differ(one: Any, other: Any, name: str = "") -> set[str]:
    """The names of the fields of two JSON values that are not equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        parts = [(one.get(key), other.get(key), key) for key in one.keys() | other.keys()]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = [(*pair, name) for pair in zip(one, other, strict=True)]
    else:
        return set() if one == other else {name}
    return set().union(*(leaves_that_differ(*part) for part in parts))


def test_only_what_the_page_names_depends_on_paths_blocks_and_engine(
    build: Build, small: Path, tmp_path: Path
) -> None:
    for name, flags in (
        ("one", ["--block_bytes=1", "--tokenizer_engine=tiktoken"]),
        ("the-second", ["--block_bytes=64MiB"]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / small.name).write_bytes(small.read_bytes())
        flags += ["--shard_tokens=3000", "--shuffle_seed=1"]
        assert build(tmp_path / name, tmp_path / f"out-{name}", *flags) == 0
    one, two = tmp_path / "out-one", tmp_path / "out-the-second"
    assert shards_in(one) == shards_in(two)
    tables = sorted(path.name for path in (one / "metadata/documents").iterdir())
    assert len(tables) > 2
    for table in tables:
        first, second = (pq.read_table(out / "metadata/documents" / table) for out in (one, two))
        assert first == second
    page = (ROOT / "docs/checks.md").read_text().partition("## What else is recorded")[2]
    named = set(re.findall(r"`(\w+)`", page.partition("\n## ")[0]))
    recorded = {}
    for name in ("job", "manifest"):
        records = [json.loads((out / f"metadata/{name}.json").read_text()) for out in (one, two)]
        recorded[name] = leaves_that_differ(*records)
    assert recorded["job"] == {"root", "identity", "block_bytes", "crc32c"}
    assert recorded["manifest"] - recorded["job"] == {
        "fingerprint",
        "blocks",
        "by_reference",
        "bytes",
    }
    assert recorded["job"] | recorded["manifest"] <= named


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [
        ["--workers=1"],
        ["--workers=3", "--runner=DirectRunner"],
        ["--direct_runner_bundle_repeat=2"],
    ],
    ids=lambda flags: " ".join(flags),
)
def test_bytes_do_not_depend_on_the_worker_processes(
    fineshards: Callable[..., Any], sample: Path, tmp_path: Path, flags: list[str]
) -> None:
    options = ["--shard_tokens=50000", "--block_bytes=1", "--test_shards=1", *flags]
    done = fineshards("build", f"--input={sample}", f"--output={tmp_path}", *options)
    assert done.returncode == 0, done.stderr
    assert shards_in(tmp_path) == oracle(read_texts(sample), 50_000, test_shards=1)


@pytest.mark.long
@pytest.mark.parametrize("row_group_size", [1, 3, 100])
@pytest.mark.parametrize("shard_tokens", [1, 7, 64])
def test_awkward_documents(
    build: Build, tmp_path: Path, row_group_size: int, shard_tokens: int
) -> None:
    texts = [
        "",
        None,
        " ",
        text_of_tokens(64),  # with the documents before it, runs over the end of a 64-token shard
        "<|endoftext|>",
        "a<|fim_prefix|>b<|endofprompt|>",
        None,
        text_of_tokens(300),  # longer than several shards
        "\ufeffbyte order mark, \x00 null, \r\n lines, cafe\u0301 café, 👩‍👩‍👧‍👦",
        "",
        "",
    ]
    source = write_texts(tmp_path / "in.parquet", texts, row_group_size=row_group_size)
    output = tmp_path / "out"
    flags = [f"--shard_tokens={shard_tokens}", "--test_shards=2", "--block_bytes=1"]
    assert build(source, output, *flags) == 0
    assert shards_in(output) == oracle(texts, shard_tokens, test_shards=2)
    totals = json.loads((output / "metadata/manifest.json").read_text())["totals"]
    assert (totals["rows"], totals["documents"], totals["nulls"]) == (11, 9, 2)


@pytest.mark.long
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    files=st.lists(
        st.lists(st.none() | st.text(max_size=30) | st.just("<|endoftext|>"), max_size=8),
        min_size=1,
        max_size=3,
    ).filter(lambda files: any(text is not None for texts in files for text in texts)),
    row_group_size=st.integers(1, 5),
    shard_tokens=st.integers(1, 40),
    test_shards=st.integers(0, 4),
    block_bytes=st.sampled_from([1, 60, 10**9]),
)
def test_any_input_gives_the_bytes_of_the_oracle(
    files: list[list[str | None]],
    row_group_size: int,
    shard_tokens: int,
    test_shards: int,
    block_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for index, texts in enumerate(files):
            write_texts(folder / f"{index}.parquet", texts, row_group_size=row_group_size)
        flags = [f"--shard_tokens={shard_tokens}", f"--test_shards={test_shards}"]
        flags += [f"--block_bytes={block_bytes}"]
        arguments = [f"--input={folder}/*.parquet", f"--output={folder}/out", *flags]
        assert main(["build", *arguments]) == 0
        stream = [text for texts in files for text in texts]
        assert shards_in(folder / "out") == oracle(stream, shard_tokens, test_shards)
        assert main(["verify", f"{folder}/out", "--sample=100%"]) == 0


def test_a_million_spaces(build: Build, tmp_path: Path) -> None:
    """tiktoken panics on this text, but encodes each of its two pre-tokens."""
    spaces = 1_200_000
    source = write_texts(tmp_path / "in.parquet", ["before", " " * spaces + "a", "after"])
    encode, encode_pre_token = ENCODING.encode_ordinary, ENCODING._encode_single_piece
    stream = [EOT, *encode("before"), EOT, *encode_pre_token(" " * (spaces - 1)), *encode(" a")]
    stream += [EOT, *encode("after")]
    assert build(source, tmp_path / "out", "--shard_tokens=5000", "--test_shards=1") == 0
    assert shards_in(tmp_path / "out") == cut(stream, 5000, test_shards=1)


@pytest.mark.long
def test_every_format_gives_the_same_bytes(build: Build, sample: Path, tmp_path: Path) -> None:
    table = pq.read_table(sample, columns=["text", "id"]).slice(0, 100)
    lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    compressor = zstandard.ZstdCompressor()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(
        gzip.compress(lines[:70_000]) + gzip.compress(lines[70_000:])
    )
    (tmp_path / "c.jsonl.zst").write_bytes(
        compressor.compress(lines[:70_000]) + compressor.compress(lines[70_000:])
    )
    (tmp_path / "d.jsonl.xz").write_bytes(
        lzma.compress(lines[:70_000]) + lzma.compress(lines[70_000:])
    )
    (tmp_path / "e.jsonl.bz2").write_bytes(
        bz2.compress(lines[:70_000]) + bz2.compress(lines[70_000:])
    )
    pq.write_table(table, tmp_path / "f.parquet")
    for name, make in (("g.arrow", pa.ipc.new_stream), ("h.feather", pa.ipc.new_file)):
        with make(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    for name, delimiter in (("i.csv", ","), ("j.tsv", "\t")):
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as opened:
            rows = csv.writer(opened, delimiter=delimiter, quoting=csv.QUOTE_ALL)
            rows.writerows([table.column_names, *(row.values() for row in table.to_pylist())])
    expected = oracle(table["text"].to_pylist(), 10_000, test_shards=1)
    files = sorted(path for path in tmp_path.iterdir())
    assert len(files) == 10
    for path in files:
        output = tmp_path / f"out-{path.name}"
        quoting = ["--quoting=quotes"] if path.suffix == ".tsv" else []
        assert build(path, output, "--shard_tokens=10000", "--test_shards=1", *quoting) == 0
        assert shards_in(output) == expected, path.name


def test_a_local_folder_laid_out_like_a_hub_repository(sample: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    texts = read_texts(sample)
    for index, name in enumerate(["one/train.parquet", "two/b.parquet", "two/a.parquet"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_texts(folder / name, texts[index * 10 : index * 10 + 10])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: first\n  data_files: one/*\n"
        "- config_name: second\n  data_files: two/*\n---\n"
    )
    output = tmp_path / "out"
    arguments = [f"--dataset={folder}", "--dataset_config=second", f"--output={output}"]
    assert main(["build", *arguments, "--shard_tokens=3000", "--test_shards=1"]) == 0
    assert shards_in(output) == oracle(texts[20:30] + texts[10:20], 3000, test_shards=1)
    origin = json.loads((output / "metadata/manifest.json").read_text())["origin"]
    assert (origin["config"], origin["split"], origin["commit"]) == ("second", "train", "")


def test_steps_count_their_inputs_and_outputs(sample: Path, tmp_path: Path) -> None:
    config = BuildConfig(
        input=sample, output=tmp_path, shard_tokens=50_000, block_bytes=1, test_shards=1
    )
    launch = prepare(config)
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    build_pipeline(pipeline, Work.of(launch.checkpoints, launch.job, config))
    result = pipeline.run()
    result.wait_until_finish()
    counters = {
        (counter.key.metric.namespace.removeprefix("fineshards."), counter.key.metric.name): (
            counter.committed
        )
        for counter in result.metrics().query()["counters"]
        if counter.key.metric.namespace.startswith("fineshards.")
    }
    texts = read_texts(sample)
    tokens = sum(1 + len(ENCODING.encode_ordinary(text)) for text in texts)
    shards = -(-tokens // 50_000)
    pieces = counters["plan", "pieces_out"]
    assert counters["discover", "files_in"] == 1
    assert counters["discover", "blocks_out"] == counters["tokenize", "blocks_in"] == 5
    assert counters["tokenize", "rows_in"] == counters["tokenize", "documents_out"] == len(texts)
    assert counters["tokenize", "bytes_in"] == sum(len(text.encode()) for text in texts)
    assert counters["tokenize", "tokens_out"] == counters["write", "tokens_out"] == tokens
    assert counters["plan", "shards_out"] == counters["write", "shards_out"] == shards
    assert counters["write", "pieces_in"] == pieces >= shards
    assert counters["write", "bytes_out"] == 4 * tokens + 128 * shards
    assert counters["commit", "shards_in"] == shards
    for step in ("discover", "tokenize", "write"):
        assert (step, "milliseconds") in counters


def test_keys_are_plain_and_beam_logs_nothing_about_the_graph(
    sample: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beam treats an unknown type as Any, logs it, and pickles keys of that type."""
    config = BuildConfig(input=sample, output=tmp_path, shuffle_seed=0)
    launch = prepare(config)
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "apache_beam"):
        build_pipeline(pipeline, Work.of(launch.checkpoints, launch.job, config))
    assert caplog.messages == []
    keys = {}

    class Visitor(PipelineVisitor):
        def visit_transform(self, node: AppliedPTransform) -> None:
            if isinstance(node.transform, beam.GroupByKey) and "Group" in node.full_label:
                keys[node.full_label] = node.inputs[0].element_type.tuple_types[0]

    pipeline.visit(Visitor())
    assert keys["Report/GroupFiles"] is int
    assert keys["Shuffle/ByBucket/Group"] is keys["ReportBuckets/GroupFiles"] is int
    assert keys["Write/ByShard/Group"] == typehints.Tuple[str, int]


def test_shuffled_elements_are_small() -> None:
    """They only refer to tokens, so they do not grow with them."""
    big = 2**60
    label = LabelCount("language", "en", big, big)
    elements = [
        Piece(TokenBlock("buckets", big, big), "train", big, big, big, big),
        Fragment(TokenBlock("blocks", big, big), big, big, big, big).plain(),
        Block(big, big, big, big, big, big, big),
        BlockSummary(big, big, big, Counts(*[big] * 8, (label,)), Sums(big, big)),
        ShardRecord(
            "train/train_0000.npy", "train", *[big] * 3, "AAAAAA==", *[big] * 4, "AAAAAA=="
        ),
    ]
    for element in elements:
        assert len(pickle.dumps(element)) < 350, element
