"""A loader's state in torch's distributed checkpoint, also where the loader's arguments changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

from benchmarks.made_up_dataset import make_dataset
from fineshards.errors import UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage


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
