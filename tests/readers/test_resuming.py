"""Loaders of trainers over our files, killed, go on with another number of ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from conftest import Exported
from support.dataset_contents import Contents
from trainer_loaders import SAVED, STEPS, steps

KILLED = 5


@pytest.mark.parametrize("name", ["olmo", "grain"])
@pytest.mark.parametrize("dataset", ["uint32"], indirect=True)
def test_a_loader_resumes_on_another_number_of_ranks(
    name: str, dataset: Contents, exported: Exported, tmp_path: Path
) -> None:
    folder = dataset.folder if name == "grain" else exported(name)

    def run(ranks: int, killed_at: int = 0) -> list[list[list[int]]]:
        """The rows of each step, sorted: a loader may deal them to its ranks as it likes."""
        program = Path(__file__).with_name("trainer_loaders.py")
        done = subprocess.run(
            [sys.executable, program, name, folder, f"{ranks}", tmp_path / "state", f"{killed_at}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr
        return [sorted(json.loads(line)) for line in done.stdout.splitlines()]

    whole = [sorted(rows.tolist()) for rows, _ in islice(steps(name, folder, 1), SAVED + STEPS)]
    assert len({str(rows) for rows in whole}) == SAVED + STEPS
    assert run(ranks=2, killed_at=KILLED) == whole[: KILLED - 1]
    assert run(ranks=4) == whole[SAVED:]
