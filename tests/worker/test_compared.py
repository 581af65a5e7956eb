"""Checks during a job: a sample of its documents is also encoded by the reference."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import hostile
from support.checkout import ROOT
from support.encoding import scheme
from support.oracle import oracle, shards_in

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS

ROWS = 4_000
MARK = "encode this wrongly"
SHARD_TOKENS = 10_000
FLAGS = [f"--shard_tokens={SHARD_TOKENS}", "--test_shards=1"]


def in_sample(file: int, row: int) -> bool:
    """Whether a row is in the sample, by splitmix64 of Steele, Lea and Flood in plain Python."""

    def mixed(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    return (mixed((row + mixed(file)) % 2**64) >> 11) * 1000 < 2**53


def write(path: Path, texts: list[str | None]) -> Path:
    table = pa.table({"text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=600)
    return path


def build_with_wrong_encoder(
    mark: str, source: Path, output: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    arguments = ["build", f"--input={source}", f"--output={output}", *FLAGS, *flags]
    return subprocess.run(
        [sys.executable, ROOT / "tests/support/wrong_encoder_driver.py", mark, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )


def with_marked_row(path: Path, row: int) -> tuple[Path, list[str | None]]:
    texts: list[str | None] = [f"document {number}" for number in range(ROWS)]
    texts[row] = f"{MARK} {row}"
    return write(path, texts), texts


@pytest.mark.long
def test_a_wrong_document_in_the_sample_fails_the_job_and_is_named(tmp_path: Path) -> None:
    # The last sampled row, which is not in the first block.
    row = max(row for row in range(ROWS) if in_sample(0, row))
    source, texts = with_marked_row(tmp_path / "in.parquet", row)
    build = build_with_wrong_encoder(MARK, source, tmp_path / "out", "--block_bytes=1")
    assert build.returncode == 1
    assert f"{source}, row {row}: gigatoken" in build.stderr
    assert "Traceback" not in build.stderr
    assert "--tokenizer_engine tiktoken --overwrite" in build.stderr
    assert not (tmp_path / "out/metadata/manifest.json").exists()
    advised = ["--tokenizer_engine=tiktoken", "--overwrite"]
    again = build_with_wrong_encoder(MARK, source, tmp_path / "out", *advised)
    assert again.returncode == 0, again.stderr
    assert shards_in(tmp_path / "out") == oracle(texts, SHARD_TOKENS, test_shards=1)


@pytest.mark.long
def test_a_wrong_document_outside_the_sample_is_found_by_verify(
    in_process: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """So only the comparison with the sample makes a job fail."""
    row = next(row for row in range(1000, ROWS) if not in_sample(0, row))
    source, texts = with_marked_row(tmp_path / "in.parquet", row)
    build = build_with_wrong_encoder(MARK, source, tmp_path / "out")
    assert build.returncode == 0, build.stderr
    assert shards_in(tmp_path / "out") != oracle(texts, SHARD_TOKENS, test_shards=1)
    assert in_process("verify", tmp_path / "out").returncode == 0
    sampled = in_process("verify", tmp_path / "out", "--sample=100%")
    assert sampled.returncode == 1
    assert f"row {row}" in sampled.stdout + sampled.stderr


@pytest.mark.long
def test_wrong_golden_texts_stop_the_job(tmp_path: Path) -> None:
    source = write(tmp_path / "in.parquet", ["no golden text"])
    build = build_with_wrong_encoder(GOLDEN_TEXTS[2], source, tmp_path / "out")
    assert build.returncode == 1
    assert "golden texts" in build.stderr
    assert not (tmp_path / "out/metadata/manifest.json").exists()


@pytest.mark.parametrize("engine", ["auto", "tiktoken"])
def test_the_manifest_counts_documents_encoded_by_the_reference(
    build: Callable[..., int], tmp_path: Path, engine: str
) -> None:
    listed = hostile.listed_codes(scheme())
    files: list[list[str | None]] = [
        hostile.documents(seed, 5_000 * seed, scheme()).to_pylist() for seed in (1, 2)
    ]
    for index, texts in enumerate(files):
        texts[::7] = [None] * len(texts[::7])
        write(tmp_path / f"{index}.parquet", texts)
    flags = [f"--tokenizer_engine={engine}", "--block_bytes=100000", *FLAGS]
    assert build(f"{tmp_path}/*.parquet", tmp_path / "out", *flags) == 0
    assert shards_in(tmp_path / "out") == oracle(
        [*files[0], *files[1]], SHARD_TOKENS, test_shards=1
    )
    manifest = json.loads((tmp_path / "out/metadata/manifest.json").read_text())
    for index, texts in enumerate(files):
        there = {row: text for row, text in enumerate(texts) if text is not None}
        if engine == "auto":
            hard = sum(any(ord(c) in listed for c in text) for text in there.values())
            compared = sum(in_sample(index, row) for row in there)
            assert hard > 0
            assert compared > 0
        else:
            hard, compared = len(there), 0
        found = manifest["reports"][index]["counts"]
        assert (found.get("by_reference", 0), found.get("compared", 0)) == (hard, compared)
    for name in ("by_reference", "compared"):
        assert manifest["totals"][name] == sum(
            report["counts"].get(name, 0) for report in manifest["reports"]
        )
