"""The loader's benchmark with torch: other loaders read the tokens that ours reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from rich.console import Console

from benchmarks.export_readers import READERS
from benchmarks.made_up import DOCUMENT_TOKENS
from benchmarks.made_up_dataset import EOT, make_dataset, stream
from benchmarks.reading import BATCH, LENGTH, shard_maps
from benchmarks.run import main
from benchmarks.torch_loaders import Crops, datatrove_dataset, megatron_dataset, other_loaders
from fineshards.errors import UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

TOKENS = 30_001


@pytest.fixture
def maps(tmp_path: Path) -> list[np.ndarray]:
    make_dataset(open_storage(str(tmp_path / "made_up")), TOKENS, 9000)
    return shard_maps(tmp_path / "made_up")


def test_crops_are_runs_of_tokens(maps: list[np.ndarray]) -> None:
    text = stream(0, TOKENS).astype(np.int64).tobytes()
    for inputs, targets in (Crops(maps)[number] for number in range(20)):
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[1:], targets[:-1])
        assert inputs.shape == (LENGTH,)
        assert np.append(inputs, targets[-1]).tobytes() in text


def test_datatrove_reads_the_same_tokens(maps: list[np.ndarray], tmp_path: Path) -> None:
    dataset = datatrove_dataset(maps, tmp_path / "datatrove")
    rows = np.stack([dataset[number]["input_ids"] for number in range(len(dataset))])
    assert len(rows) == TOKENS // (LENGTH + 1)
    assert np.array_equal(rows.ravel(), stream(0, rows.size))


def test_megatron_reads_the_same_tokens(maps: list[np.ndarray], tmp_path: Path) -> None:
    dataset = megatron_dataset(maps, tmp_path / "megatron")
    assert len(dataset) == (TOKENS - 1) // LENGTH
    documents = {
        stream(start, min(start + DOCUMENT_TOKENS, TOKENS)).tobytes()
        for start in range(0, TOKENS, DOCUMENT_TOKENS)
    }
    for number in range(len(dataset)):
        sample = dataset[number]
        tokens = sample["tokens"].numpy()
        assert np.array_equal(tokens[1:], sample["labels"].numpy()[:-1])
        # Whole documents, except for the first and the last.
        for whole in np.split(tokens, np.flatnonzero(tokens == EOT))[1:-1]:
            assert whole.astype(np.uint32).tobytes() in documents


def test_loaders_give_batches_of_as_many_tokens(maps: list[np.ndarray], tmp_path: Path) -> None:
    drawn = other_loaders(tmp_path / "made_up", maps, 128, Console())
    for loader in [loader for name, loader in drawn.items() if name not in READERS]:
        for batches in (list(loader(workers)()) for workers in (2, 0)):
            assert len(batches) == 2
            for batch in batches:
                first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
                assert first.shape[0] == 64
                assert first.shape[1] in (LENGTH, LENGTH + 1)
                assert first.dtype == torch.int64


@pytest.mark.parametrize("name", READERS)
def test_readers_of_exports_read_the_same_tokens(tmp_path: Path, name: str) -> None:
    """Each row of an epoch, shuffled; by workers too."""
    rows, made = 3 * BATCH, tmp_path / "made_up"
    make_dataset(open_storage(str(made)), rows * (LENGTH + 1), rows * (LENGTH + 1))
    expected = stream(0, rows * (LENGTH + 1)).astype(np.int64).reshape(rows, -1)
    loader = READERS[name][1](made, tmp_path / "export")
    for workers, least in ((2, BATCH), (0, rows)):
        batches = [*loader(workers)()]
        assert {(batch.dtype, batch.shape) for batch in batches} == {
            (torch.int64, (BATCH, LENGTH + 1))
        }
        found = torch.cat(batches).numpy()
        places = {row.tobytes(): number for number, row in enumerate(expected)}
        numbers = [places[row.tobytes()] for row in found]
        assert len(set(numbers)) == len(numbers) >= least
        assert numbers != sorted(numbers)


def test_the_loader_is_measured_beside_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--loader", "--shrink=1000", "--rounds=2", "--name=tiny", f"--results={tmp_path}"]
    assert main(flags) == 0
    (path,) = tmp_path.glob("*-tiny.json")
    result = json.loads(path.read_text())
    assert set(result["versions"]) == {"python", "numpy", "numba", "torch", "datatrove"} | {
        *("megatron-core", "litdata", "mosaicml-streaming", "grain", "datasets")
    }
    named = {timing["name"]: timing for timing in result["timings"]}
    assert {timing["beside"] for timing in named.values()} <= {None, *named}
    for name in ("torch's DataLoader, random crops", "datatrove's folder dataset"):
        assert named[f"{name}, 2 workers"]["beside"] == "int64 tensors"
    assert named["Megatron's GPTDataset, 0 workers"]["items"] == 64
    assert {f"{name}, {workers} workers" for name in READERS for workers in (0, 2)} <= set(named)
    assert "not installed" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder = tmp_path_factory.mktemp("checkpointed")
    make_dataset(open_storage(str(folder)), 20_001, 7000)
    return TokenDataset(folder, sequence_length=64)


@pytest.mark.parametrize("sizes", [8, {0: 8, 3: 4}])
@pytest.mark.parametrize("later", [8, {0: 4}, {0: 2, 9: 4}])
def test_a_run_goes_on_with_other_batch_sizes(
    dataset: TokenDataset, tmp_path: Path, sizes: Any, later: Any
) -> None:
    loader = BatchLoader(dataset, sizes, seed=1)
    for _ in range(5):
        next(loader)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    resumed = BatchLoader(dataset, later, seed=1)
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "saved")
    assert (resumed.step, resumed.consumed) == (5, loader.consumed)
    rows = np.concatenate([next(loader) for _ in range(4)])
    ours = next(resumed)
    assert np.array_equal(ours, rows[: len(ours)])
    loader.close()
    resumed.close()


def test_another_packing_is_refused_by_a_sentence(dataset: TokenDataset, tmp_path: Path) -> None:
    loader = BatchLoader(dataset, 8, seed=1, packing=Packing(rows=16))
    next(loader)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    for other in (None, Packing(rows=8)):
        resumed = BatchLoader(dataset, 8, seed=1, packing=other)
        with pytest.raises((UsageError, dcp.api.CheckpointException), match="packing is"):
            dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "saved")
    loader.close()
