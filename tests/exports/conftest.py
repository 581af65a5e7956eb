"""A dataset to export."""

from pathlib import Path

import pytest
from support.growing import build, made_up_rows, write_rows


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="session")
def by_document(folder: Path) -> Path:
    """Documents of one token up to several shards, in both splits. Read-only."""
    source = write_rows(folder / "rows.parquet", made_up_rows(1, 120))
    build(folder / "out", source, "--shard_tokens=300", "--test_fraction=0.2")
    return folder / "out"
