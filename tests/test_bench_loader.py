"""The loader's benchmark on tiny sizes; the measured speeds are not asserted."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.contestants import ROOT
from benchmarks.run import main

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
    whole = timings["whole documents with masks, uint32"]
    assert whole["beside"] == "whole documents by hand, with masks, uint32"
    for timing in timings.values():
        assert len(timing["runs"]) == result["rounds"] == 2
        assert timing["items_per_second"] == pytest.approx(timing["items"] / timing["seconds"])
    printed = capsys.readouterr().out
    assert "compiled loop" in printed if HAS_COMPILER else "g++ is not installed" in printed
