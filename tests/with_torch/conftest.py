"""The dataset that the tests with torch read."""

from pathlib import Path

import pytest

from benchmarks.made_up_dataset import make_dataset
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

pytest_plugins = ["support.slices"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(made)), 5001, 700)
    return made


@pytest.fixture
def dataset(folder: Path) -> TokenDataset:
    """200 samples."""
    return TokenDataset(folder, sequence_length=25)
