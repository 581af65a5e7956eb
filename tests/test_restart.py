"""Killed at any moment and started again: same bytes, nothing done twice, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from conftest import ROOT
from support.oracle import oracle, read_texts, shards_in
from support.watched_encoder import watched_encode

from fineshards.encoders.exact import ExactEncoder
from fineshards.errors import OutputError
from fineshards.pipeline.graph import build_pipeline
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job import Job
from fineshards.storage.base import open_storage
from fineshards.transforms.work import Work

Build = Callable[..., int]


@pytest.fixture
def small(tmp_path: Path, sample: Path) -> Path:
    """40 documents of the sample in two files, three row groups."""
    folder = tmp_path / "input"
    folder.mkdir()
    table = pq.read_table(sample)
    pq.write_table(table.slice(0, 30), folder / "a.parquet", row_group_size=15)
    pq.write_table(table.slice(30, 10), folder / "b.parquet")
    return folder


def files_in(folder: Path) -> dict[str, int]:
    """All files, with their times of last change."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("part", range(2))
def test_restart_after_a_kill_before_any_file_operation(
    small: Path, tmp_path: Path, part: int
) -> None:
    """Every state of the disk that a crash can leave, one after the other."""
    flags = [f"--input={small}/*.parquet", "--shard_tokens=10000", "--block_bytes=1"]
    done = subprocess.run(
        [sys.executable, ROOT / "tests/support/crash_driver.py", tmp_path, str(part), "2", *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    crashes = json.loads(done.stdout)
    texts = read_texts(small / "a.parquet", small / "b.parquet")
    expected = oracle(texts, 10_000, test_shards=1)
    assert len(crashes) > 10
    for crash in crashes:
        output = tmp_path / f"crash-{crash['operation']}"
        assert crash["status"] == 0, crash
        assert shards_in(output) == expected, crash
        assert crash["shards_rewritten"] == [], crash
        # At the moment of the crash too the split folders held whole shards and nothing else.
        assert crash["not_shards"] == [], crash
        assert crash["documents_encoded"] == len(texts) - crash["documents_finished"], crash
        assert not (output / "checkpoints").exists(), crash
        assert set(files_in(output)) == expected_names(expected), crash


def expected_names(shards: dict[str, bytes]) -> set[str]:
    tables = {f"metadata/documents/{Path(name).stem}.parquet" for name in shards}
    records = {f"metadata/{name}" for name in ("job.json", "manifest.json", "vocabulary.tiktoken")}
    return set(shards) | tables | records


@pytest.mark.parametrize("mode", [None, "multi_threading", "multi_processing"])
def test_restart_after_kills_at_random_moments_on_ever_other_workers(
    sample: Path, tmp_path: Path, mode: str | None
) -> None:
    output = tmp_path / "out"

    def command(workers: int) -> list[str]:
        flags = [f"--direct_running_mode={mode}", f"--direct_num_workers={workers}"] if mode else []
        return [
            *(
                sys.executable,
                "-m",
                "fineshards",
                "build",
                f"--input={sample}",
                f"--output={output}",
            ),
            *("--shard_tokens=50000", "--block_bytes=1", *flags),
        ]

    for workers in (2, 1, 3):
        job = subprocess.Popen(command(workers), cwd=ROOT, stderr=subprocess.DEVNULL)
        while not (output / "metadata/job.json").exists() and job.poll() is None:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 2.5))
        job.kill()
        job.wait()
    done = subprocess.run(command(4), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = oracle(read_texts(sample), 50_000, test_shards=1)
    assert shards_in(output) == expected
    assert set(files_in(output)) == expected_names(expected)


def test_blocks_that_a_power_cut_damaged_are_done_again(
    build: Build, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are there, contents are not: token blocks are not flushed to the disk."""
    output = tmp_path / "out"
    flags = ["--shard_tokens=10000", "--block_bytes=1", "--keep_checkpoints"]
    assert build(small / "*.parquet", output, *flags) == 0
    expected = shards_in(output)
    (folder,) = (output / "checkpoints").iterdir()
    zeroed, cut, whole = sorted(folder.glob("blocks/*.tokens"))
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    os.truncate(cut.with_suffix(".parquet"), 100)
    inode = whole.stat().st_ino
    shutil.rmtree(folder / "shards")
    (output / "metadata/manifest.json").unlink()
    encoded: list[int] = []
    monkeypatch.setattr(ExactEncoder, "encode", watched_encode(encoded.append))
    assert build(small / "*.parquet", output, *flags) == 0
    assert shards_in(output) == expected
    assert sum(encoded) == 30
    assert whole.stat().st_ino == inode


def test_finished_job_does_nothing_and_says_so(
    build: Build, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--shard_tokens=10000") == 0
    before = files_in(output)
    capsys.readouterr()
    assert build(small / "*.parquet", output, "--shard_tokens=10000") == 0
    assert files_in(output) == before
    assert "already finished, nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag",
    [
        "--shard_tokens=9999",
        "--test_fraction=0.5",
        "--test_shards=1",
        "--text_column=url",
        "--id_column=url",
        "--block_bytes=77",
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_other_options_are_refused_with_the_difference_named(
    build: Build,
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    finished: bool,
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--shard_tokens=10000") == 0
    if not finished:
        (output / "metadata/manifest.json").unlink()
    before = files_in(output)
    assert build(small / "*.parquet", output, "--shard_tokens=10000", flag) == 2
    name, _, value = flag.partition("=")
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"holds another job: {name}" in last or f"; {name}" in last
    assert value in last or "Fraction" in last or "1/2" in last
    assert files_in(output) == before


def test_another_input_is_refused_with_the_difference_named(
    build: Build, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output) == 0
    changed = {
        "fewer": lambda: build(small / "a.parquet", output),
        "touched": lambda: (os.utime(small / "a.parquet"), build(small / "*.parquet", output))[1],
        "renamed": lambda: (
            (small / "a.parquet").rename(small / "aa.parquet"),
            build(small / "*.parquet", output),
        )[1],
    }
    expected = {
        "fewer": "number of input files: was 2, now 1",
        "touched": f"{small}/a.parquet changed: it had",
        "renamed": f"input file 0: was {small}/a.parquet, now {small}/aa.parquet",
    }
    for what, rebuild in changed.items():
        assert rebuild() == 2
        assert expected[what] in capsys.readouterr().err.splitlines()[-1]


def test_a_mistake_in_the_first_try_is_corrected_without_a_flag(
    build: Build, small: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--text_column=body") == 1
    assert build(small / "*.parquet", output, "--shard_tokens=10000") == 0
    texts = read_texts(small / "a.parquet", small / "b.parquet")
    assert shards_in(output) == oracle(texts, 10_000, test_shards=1)


def test_a_job_whose_output_was_taken_over_stops_before_it_writes(
    build: Build, small: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert build(small / "a.parquet", output, "--keep_checkpoints") == 0
    storage = open_storage(str(output))
    job = Job.load(storage)
    old = Checkpoints.of(storage, job)
    assert build(small / "b.parquet", output, "--overwrite") == 0
    before = files_in(output)
    with pytest.raises(OutputError, match="was taken over by another job"):
        old.job()
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    build_pipeline(pipeline, Work(old, job.settings, files=1))
    with pytest.raises(OutputError, match="was taken over by another job"):
        pipeline.run()
    assert files_in(output) == before


def test_overwrite_starts_again(build: Build, small: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--shard_tokens=1000") == 0
    assert build(small / "a.parquet", output, "--shard_tokens=10000", "--overwrite") == 0
    expected = oracle(read_texts(small / "a.parquet"), 10_000, test_shards=1)
    assert shards_in(output) == expected
    assert set(files_in(output)) == expected_names(expected)


def test_kept_checkpoints_hold_nothing_unfinished(
    build: Build, small: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert build(small / "*.parquet", output, "--keep_checkpoints") == 0
    (kept,) = (output / "checkpoints").iterdir()
    assert len(kept.name) == 64
    assert (kept / "plan.json").exists()


def test_two_jobs_on_one_output_both_succeed(sample: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "fineshards", "build", f"--input={sample}", f"--output={output}"),
        *("--shard_tokens=50000", "--block_bytes=1"),
    ]
    jobs = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for job in jobs:
        _, errors = job.communicate()
        assert job.returncode == 0, errors
    expected = oracle(read_texts(sample), 50_000, test_shards=1)
    assert shards_in(output) == expected
    assert set(files_in(output)) == expected_names(expected)
