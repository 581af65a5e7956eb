"""Appends killed at any moment: readers see a whole generation, and the same command resumes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.growing import append, build, content_of, made_up_rows, tokens_in, write_rows
from support.killed_by_hand import crashes_of

import fineshards
from fineshards import TokenDataset
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.kills

FLAGS = ["--shard_tokens=500", "--test_fraction=0.3", "--block_bytes=1"]


def prepare(folder: Path, rows: int, *flags: str) -> list[str]:
    """Makes `finished`, and `grown` by an append; returns the arguments of that append."""
    parts = made_up_rows(5, rows), made_up_rows(6, rows)
    files = [write_rows(folder / f"in/{number}.parquet", part) for number, part in enumerate(parts)]
    build(folder / "finished", files[0], *FLAGS, *flags)
    shutil.copytree(folder / "finished", folder / "grown")
    append(folder / "grown", files[1])
    if not flags:
        build(folder / "at-once", *files, *FLAGS)
        assert content_of(folder / "grown") == content_of(folder / "at-once")
    files[0].unlink()
    return ["--input", str(files[1])]


@pytest.mark.parametrize("flags", [[], ["--shuffle_seed=3"]])
@pytest.mark.parametrize("part", range(2))
def test_an_append_killed_before_any_file_operation(
    tmp_path: Path, part: int, flags: list[str]
) -> None:
    given = prepare(tmp_path, 14, *flags)
    # Every third operation, with a shuffle two of nine: all of them take ten minutes.
    step = "9" if flags else "6"
    crashes = crashes_of("append_crash_driver", tmp_path, part, step, *given)
    assert len(crashes) > (5 if flags else 6)
    for crash in crashes:
        assert crash["problems"] == [], crash
        assert crash["status"] == 0, crash
        assert crash["same"], crash
        assert not crash["left"], crash


@pytest.mark.parametrize("seed", range(2))
def test_an_append_killed_at_random_times_with_its_workers(tmp_path: Path, seed: int) -> None:
    given = prepare(tmp_path, 60)
    expected = [
        {
            split: tokens_in(TokenDataset(tmp_path / name, split, sequence_length=1))
            for split in ("test", "train")
        }
        for name in ("finished", "grown")
    ]
    dataset = tmp_path / "killed"
    shutil.copytree(tmp_path / "finished", dataset)
    # No machine finishes in the first half second.
    draw, kills, wait = random.Random(seed), 0, 0.5
    command = [sys.executable, "-m", "fineshards", "append", str(dataset), *given]
    while True:
        process = subprocess.Popen(
            command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL
        )
        try:
            assert process.wait(wait * draw.random()) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            wait *= 1.3
        manifest = Manifest.load_finished(open_storage(str(dataset)))
        for generation in range(1, manifest.generation + 1):
            for split, tokens in expected[generation - 1].items():
                opened = TokenDataset(dataset, split, sequence_length=1, generation=generation)
                assert tokens_in(opened) == tokens
            assert fineshards.verify(dataset, generation=generation).problems == []
        if process.returncode == 0:
            break
    assert kills
    assert content_of(dataset) == content_of(tmp_path / "grown")
    assert not (dataset / "checkpoints").exists()
