"""Three files to build from."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="session")
def table(sample: Path) -> pa.Table:
    return pq.read_table(sample, columns=["text", "id"]).slice(0, 40)


@pytest.fixture
def data(tmp_path: Path, table: pa.Table) -> Path:
    """A folder with three files."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        pq.write_table(table.slice(number * 10, 10), folder / f"{number}.parquet")
    return folder
