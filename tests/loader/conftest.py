"""A dataset to read."""

from pathlib import Path

import pytest

from benchmarks.made_up_dataset import make_dataset
from fineshards.storage.open import open_storage


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made_up")
    make_dataset(open_storage(str(made)), 5000, 500, test_shards=1)
    return made
