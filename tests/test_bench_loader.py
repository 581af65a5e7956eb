"""The loader's benchmark on tiny sizes; the measured speeds are not asserted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.contestants import ROOT
from benchmarks.made_up_dataset import make_dataset, uneven
from benchmarks.mixing import compiled_loop
from benchmarks.reading import shard_maps
from benchmarks.reading_packed import copied, joined, packed_places
from benchmarks.run import main
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.blending import greedy
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

HAS_COMPILER = shutil.which("g++") is not None


@pytest.mark.long
def test_the_loader_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--loader", "--shrink=1000", "--rounds=2", "--name=tiny", f"--results={tmp_path}"]
    assert main(flags) == 0
    (path,) = tmp_path.glob("*-tiny.json")
    written = path.read_text()
    assert str(ROOT) not in written
    result = json.loads(written)
    assert all(result["machine"].values())
    timings = {timing["name"]: timing for timing in result["timings"]}
    names = {
        "export to megatron, link",
        "greedy, 10 sources",
        "nanoset",
        "far, at random",
        "draws at once, 10 sources",
        "by hand, mixture of 50",
    }
    assert names <= set(timings)
    assert timings["mixture of 50"]["tokens"] == 2048 * timings["mixture of 50"]["items"]
    packed = timings["packed: with cu_seqlens, int64"]
    assert packed["beside"] == "packed by hand, joined, int64"
    for timing in timings.values():
        assert len(timing["runs"]) == result["rounds"] == 2
        assert timing["items_per_second"] == pytest.approx(timing["items"] / timing["seconds"])
    printed = capsys.readouterr().out
    assert "compiled loop" in printed if HAS_COMPILER else "g++ is not installed" in printed


@pytest.mark.parametrize("loop", [copied, joined])
@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_rows_packed_by_hand_are_the_loaders(tmp_path: Path, loop: Any, dtype: str) -> None:
    """Two windows, the last one with fewer rows."""
    tokens = 800_000
    make_dataset(open_storage(str(tmp_path)), tokens, 4_000_000, made=uneven(tokens, 655))
    dataset = TokenDataset(tmp_path, sequence_length=2048)
    maps = shard_maps(tmp_path)
    by_hand = loop(maps, packed_places(dataset, 12, maps), dtype)
    fields = ["inputs", "targets"]
    with BatchLoader(dataset, 32, dtype=dtype, fields=fields, packing=Packing()) as loader:
        for batch, (inputs, targets) in zip(loader, by_hand, strict=False):
            assert inputs.dtype == batch["inputs"].dtype
            assert np.array_equal(inputs, batch["inputs"])
            assert np.array_equal(targets, batch["targets"])


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ is not installed")
@pytest.mark.parametrize("weights", [[0.1, 0.5, 0.3, 0.1], [1 / 3, 2 / 3], [0.9, 1e-9, 0.1 - 1e-9]])
def test_the_compiled_loop_equals_greedy(tmp_path: Path, weights: list[float]) -> None:
    blend = compiled_loop(tmp_path)
    assert blend is not None
    for found, expected in zip(greedy(weights, 30_011), blend(weights, 30_011, 1), strict=True):
        assert np.array_equal(found, expected)
