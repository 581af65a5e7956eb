"""The loader with torch, torchdata, grain and jax, where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

from benchmarks.made_up_dataset import make_dataset
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.dataset import TokenDataset
from fineshards.storage.base import open_storage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(made)), 5001, 700)
    return made


@pytest.fixture
def dataset(folder: Path) -> TokenDataset:
    """200 samples."""
    return TokenDataset(folder, sequence_length=25)


# torch


def torch_loader(dataset: TokenDataset, workers: int, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    from fineshards.loader.torch_batches import TorchBatches

    options = {"epochs": 2, "drop_last": False} | options
    batches = TorchBatches(BatchLoader(dataset, 12, 5, **options))
    # Start methods other than fork need an importable main module.
    return DataLoader(batches, batch_size=None, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torch_gives_the_same_batches_with_any_number_of_workers(
    dataset: TokenDataset, workers: int
) -> None:
    torch = pytest.importorskip("torch")
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
    pytest.importorskip("torch")
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
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    from fineshards.loader.torch_batches import TorchBatches

    def make() -> Any:
        batches = TorchBatches(BatchLoader(dataset, 12, 5, epochs=2, drop_last=False))
        return stateful.StatefulDataLoader(batches, batch_size=None, num_workers=workers)

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
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=workers, drop_last=False
    )
    rows = np.concatenate([batch.numpy() for batch in loader])
    expected = dataset.gather(np.arange(len(dataset)))
    assert rows.shape == expected.shape
    assert sorted(map(bytes, rows)) == sorted(map(bytes, expected))


# grain


def test_grain_takes_the_dataset_as_a_source(dataset: TokenDataset) -> None:
    grain = pytest.importorskip("grain")
    shuffled = grain.MapDataset.source(dataset).shuffle(seed=3).batch(8)
    rows = np.concatenate([shuffled[i] for i in range(len(shuffled))])
    expected = dataset.gather(np.arange(len(dataset)))
    assert not np.array_equal(rows, expected)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, expected))
    iterator = iter(shuffled.to_iter_dataset())
    first, state, second = next(iterator), iterator.get_state(), next(iterator)
    iterator = iter(shuffled.to_iter_dataset())
    iterator.set_state(state)
    assert np.array_equal(next(iterator), second)
    assert not np.array_equal(first, second)


# jax

JAX = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.dataset import TokenDataset

assert jax.device_count() == 4
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
dataset = TokenDataset(sys.argv[1], sequence_length=25)
rank, world = jax.process_index(), jax.process_count()
with BatchLoader(dataset, 8, 1, rank, world) as loader:
    local = next(loader)
    batch = jax.make_array_from_process_local_data(sharding, local)
assert batch.shape == (8, 26)
assert str(batch.dtype) == "uint32"
assert [shard.data.shape for shard in batch.addressable_shards] == [(2, 26)] * 4
assert np.array_equal(np.asarray(batch), local)
print(int(jax.jit(lambda tokens: tokens.sum())(batch)) == int(local.sum() % 2**32))
"""


def test_jax_distributes_batches_over_a_mesh(folder: Path) -> None:
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, "-c", JAX, str(folder)],
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT / "tests"),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
