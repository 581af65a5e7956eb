"""A few of the kills and damages of `make storms`, so that the programs themselves stay right."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.checkout import ROOT


@pytest.mark.kills
@pytest.mark.parametrize(("storm", "wanted"), [("kills", 26), ("damages", 250)])
def test_a_small_storm(storm: str, wanted: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"storms.{storm}", "7", str(wanted)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert sum((counts.get("damages") or counts).values()) >= wanted
