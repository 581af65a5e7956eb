"""A few of the kills, damages and digits of `make storms`: the programs themselves stay right."""

import json
import os
import subprocess
import sys

import pytest
from support.checkout import ROOT


@pytest.mark.kills
@pytest.mark.parametrize(
    ("storm", "wanted", "counted"),
    [("kills", 26, "by command"), ("damages", 250, "damages"), ("digits", 12, "all")],
)
def test_a_small_storm(storm: str, wanted: int, counted: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"storms.{storm}", "7", str(wanted)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(json.loads(done.stdout)[counted].values()) >= wanted
