"""Levanter reads our rows, and after a kill goes on with another number of devices."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from levanter_loader import BATCH, STEPS

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.storage.open import open_storage

SAVED, KILLED, LENGTH = 3, 5, 1024
# More than a block of its mixture, which would take rows twice.
ROWS = 2_100


def test_levanter_resumes_on_another_number_of_devices(tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path / "out")), LENGTH * ROWS + 1, 50_000)

    def run(devices: int, begin: int = 0, killed_at: int = -1) -> list[list[list[int]]]:
        program = Path(__file__).with_name("levanter_loader.py")
        done = subprocess.run(
            [sys.executable, program, f"{devices}", f"{begin}", f"{killed_at}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (0 if killed_at < 0 else -signal.SIGKILL), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    whole = run(devices=1)
    assert len(whole) == STEPS
    assert run(devices=4, killed_at=KILLED) == whole[:KILLED]
    assert run(devices=2, begin=SAVED) == whole[SAVED:]

    rows = np.array(whole).reshape(BATCH * STEPS, LENGTH)
    expected = stream(0, LENGTH * ROWS).astype(np.int64).reshape(ROWS, LENGTH)
    places = [int(np.flatnonzero((expected == row).all(axis=1))[0]) for row in rows]
    assert len(set(places)) == len(places)
    assert places != sorted(places)
