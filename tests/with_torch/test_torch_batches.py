"""The loader in torch's DataLoader and torchdata's StatefulDataLoader."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.dataset import TokenDataset
from fineshards.loader.torch_batches import TorchBatches


def torch_loader(dataset: TokenDataset, workers: int) -> Any:
    batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    # Start methods other than fork need an importable main module.
    return DataLoader(batches, batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torch_gives_the_same_batches_with_any_number_of_workers(
    dataset: TokenDataset, workers: int
) -> None:
    expected = list(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    loader = torch_loader(dataset, workers)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(expected) == 34
        assert all(batch.dtype == torch.int64 for batch in batches)
        assert all(np.array_equal(a, b) for a, b in zip(batches, expected, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_resumes_by_steps_on_another_number_of_workers(
    dataset: TokenDataset, workers: int
) -> None:
    expected = list(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    for steps in (0, 1, 5, 33, 34):
        first = torch_loader(dataset, workers)
        assert len(list(islice(first, steps))) == steps
        state = first.dataset._loader.state_dict(steps)
        second = torch_loader(dataset, 3 - workers)
        second.dataset._loader.load_state_dict(state)
        rest = list(second)
        assert len(rest) == len(expected) - steps
        assert all(np.array_equal(a, b) for a, b in zip(rest, expected[steps:], strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torchdata_saves_and_restores_the_position(dataset: TokenDataset, workers: int) -> None:
    def make() -> Any:
        batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
        return StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    expected = list(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
    for steps in (1, 4, 20, 34):
        first = make()
        taken = list(islice(first, steps))
        state = first.state_dict()
        for _ in range(2):
            # And again from a state that was saved right after a restore.
            second = make()
            second.load_state_dict(state)
            iterator = iter(second)
            state = second.state_dict()
            rest = list(iterator)
            assert len(taken) + len(rest) == len(expected)
            pairs = zip([*taken, *rest], expected, strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_takes_a_map_style_dataset(dataset: TokenDataset, workers: int) -> None:
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers, drop_last=False)
    rows = np.concatenate([batch.numpy() for batch in loader])
    expected = dataset.gather(np.arange(len(dataset)))
    assert rows.shape == expected.shape
    assert sorted(map(bytes, rows)) == sorted(map(bytes, expected))
