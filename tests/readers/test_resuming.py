"""Loaders of trainers over our files, killed, go on with another number of ranks."""

import json
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from conftest import Exported
from support.dataset_contents import Contents, Tokens
from trainer_loaders import LENGTH, SAVED, STEPS, steps

KILLED = 5


@pytest.mark.parametrize(
    ("name", "export", "before", "after"),
    [
        ("olmo", ["olmo"], 2, 4),
        ("grain", [], 2, 4),
        ("megatron", ["megatron"], 4, 2),
        ("nemo", ["megatron"], 4, 2),
        # Whole rows in each chunk, or their last tokens are left out.
        ("litgpt", ["litdata", f"--sequence_length={LENGTH + 1}"], 4, 2),
        ("maxtext", ["megatron", "--split=train"], 4, 2),
    ],
)
@pytest.mark.parametrize("dataset", ["uint32"], indirect=True)
def test_a_loader_resumes_on_another_number_of_ranks(
    name: str,
    export: list[str],
    before: int,
    after: int,
    dataset: Contents,
    exported: Exported,
    tmp_path: Path,
) -> None:
    folder = exported(*export) if export else dataset.folder

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

    unbroken = islice(steps(name, folder, before, []), SAVED + STEPS)
    whole = [sorted(rows.tolist()) for rows, _ in unbroken]
    assert run(before, killed_at=KILLED) == whole[: KILLED - 1]
    assert run(after) == whole[SAVED:]

    rows = [row for step in whole for row in step]
    assert len({str(row) for row in rows}) == len(rows)
    if name in ("megatron", "nemo"):
        order = in_megatrons_order(dataset.ended("train"))
        size = len(whole[0])
        assert whole == [sorted(order[at : at + size]) for at in range(0, len(rows), size)]
    else:
        stream = dataset.tokens["train"]
        if name in ("olmo", "maxtext"):
            stream = np.concatenate(dataset.ended("train"))
        size = len(rows[0])
        assert size in (LENGTH, LENGTH + 1)
        places = range(0, len(stream) - size + 1, LENGTH if name == "grain" else size)
        assert {str(row) for row in rows} <= {str(stream[at : at + size].tolist()) for at in places}


def in_megatrons_order(documents: list[Tokens]) -> list[list[int]]:
    """The samples of an epoch: documents are shuffled and joined, and so are their samples."""
    random = np.random.RandomState(1)
    numbers = np.arange(len(documents))
    random.shuffle(numbers)
    stream = np.concatenate([documents[number] for number in numbers])
    samples = np.arange((len(stream) - 1) // LENGTH)
    random.shuffle(samples)
    return [stream[at * LENGTH :][:LENGTH].tolist() for at in samples]
