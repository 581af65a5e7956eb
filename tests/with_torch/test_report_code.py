"""The code that a report shows for PyTorch loads the dataset."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fineshards.publishing.loading_snippets import loading_snippets
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage


def test_it_makes_tensors_of_the_shape_that_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code = dict(loading_snippets(Manifest.load_finished(open_storage("."))))["PyTorch"]
    found: dict[str, object] = {}
    exec(compile(code, "the report", "exec"), found)
    assert isinstance(found["batch"], torch.Tensor)
    assert found["batch"].dtype == torch.int64
    assert f"# int64, shape {tuple(found['batch'].shape)}\n" in code
