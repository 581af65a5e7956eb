"""Packed attention, pinned batches and exact resuming on a GPU. Without one, these are skipped."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks.gpu import attention_difference, by_cu_seqlens, by_document_ids
from benchmarks.made_up_dataset import make_dataset, uneven
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.torch_batches import TorchBatches
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
EXAMPLE = Path(__file__).parent.parent.parent / "examples/train_gpt2.py"


@pytest.mark.parametrize("kernel", [by_cu_seqlens, by_document_ids])
def test_packed_attention_is_that_of_each_document_alone(
    kernel: Callable[..., Any], tmp_path: Path
) -> None:
    make_dataset(open_storage(str(tmp_path)), 600_000, 200_000, made=uneven(600_000, 200))
    dataset = TokenDataset(tmp_path, sequence_length=1024)
    # Two steps of bfloat16 between 2 and 4. Another document in sight makes it larger than 1.
    assert 0 < attention_difference(dataset, kernel) <= 2**-5


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_arrive_unchanged(dataset: TokenDataset, workers: int) -> None:
    expected = list(BatchLoader(dataset, 12, 5, epochs=2))
    batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=2))
    loader = DataLoader(batches, batch_size=None, num_workers=workers, pin_memory=True)
    arrived = [batch.to("cuda", non_blocking=True) for batch in loader]
    assert len(arrived) == len(expected) == 34
    assert all(np.array_equal(a.cpu(), b) for a, b in zip(arrived, expected, strict=True))


def test_the_example_resumes_with_the_same_losses(tmp_path: Path) -> None:
    def train(output: str, steps: int) -> list[str]:
        command = [sys.executable, EXAMPLE, f"--steps={steps}", "--save_steps=3"]
        done = subprocess.run(
            [*command, f"--output={output}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return re.findall(r"step \d+: loss .+", done.stdout)

    whole = train("whole", 6)
    assert len(set(whole)) == 6
    # The second run begins at the checkpoint of step 3.
    assert train("parts", 5) == whole[:5]
    assert train("parts", 6) == whole[3:]
