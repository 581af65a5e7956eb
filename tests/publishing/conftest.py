"""A dataset to publish."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def dataset(unpublished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(unpublished, tmp_path / "out")
