"""The loader's benchmark on tiny sizes; the measured speeds are not asserted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.contestants import ROOT
from benchmarks.mixing import compiled_loop
from benchmarks.run import main
from fineshards.loader.mixing.blending import greedy

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
    }
    assert names <= set(timings)
    for timing in timings.values():
        assert len(timing["runs"]) == result["rounds"] == 2
        assert timing["items_per_second"] == pytest.approx(timing["items"] / timing["seconds"])
    printed = capsys.readouterr().out
    assert "compiled loop" in printed if HAS_COMPILER else "g++ is not installed" in printed


@pytest.mark.skipif(not HAS_COMPILER, reason="g++ is not installed")
@pytest.mark.parametrize("weights", [[0.1, 0.5, 0.3, 0.1], [1 / 3, 2 / 3], [0.9, 1e-9, 0.1 - 1e-9]])
def test_the_compiled_loop_equals_greedy(tmp_path: Path, weights: list[float]) -> None:
    blend = compiled_loop(tmp_path)
    assert blend is not None
    for found, expected in zip(greedy(weights, 30_011), blend(weights, 30_011, 1), strict=True):
        assert np.array_equal(found, expected)
