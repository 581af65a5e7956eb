"""The loader with grain and jax, where they are installed. With torch: tests/with_torch/."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.checkout import ROOT

from benchmarks.made_up_dataset import make_dataset
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(made)), 5001, 700)
    return made


@pytest.fixture
def dataset(folder: Path) -> TokenDataset:
    """200 samples."""
    return TokenDataset(folder, sequence_length=25)


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
from fineshards.loader.token_dataset import TokenDataset

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


# Runs the script that follows. It kills itself when it has read as many batches as the first
# argument says, or never.
KILLED = """
import os, runpy, signal, sys
from fineshards import BatchLoader

read, left = BatchLoader.__next__, int(sys.argv[1])
def killing(loader):
    global left
    batch, left = read(loader), left - 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch
BatchLoader.__next__ = killing
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.long
def test_the_example_with_jax_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")

    def losses(name: str, killed_at: int = 0) -> list[str]:
        script = [str(ROOT / "examples/train_jax.py"), str(folder), "--steps=6", "--save_steps=3"]
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                KILLED,
                str(killed_at),
                *script,
                f"--checkpoint={tmp_path}/{name}",
            ],
            cwd=ROOT,
            env=os.environ
            | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr
        return done.stdout.splitlines()

    whole = losses("whole.npz")
    assert len(set(whole)) == 6
    assert losses("killed.npz", killed_at=5) == whole[:4]
    assert losses("killed.npz") == whole[3:]
