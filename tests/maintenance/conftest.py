"""A dataset of two generations to redact documents of, and a copy of it to change."""

import shutil
from pathlib import Path

import pytest
from support.growing import append, build, made_up_rows, write_parts
from support.redacted import SECRET

KINDS = {
    "document": ["--test_fraction=0.3"],
    "shards": ["--test_shards=2"],
    "shuffled": ["--test_fraction=0.3", "--shuffle_seed=5"],
}


@pytest.fixture(scope="session", params=KINDS)
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two generations, in `out/`, and its sources."""
    folder = tmp_path_factory.mktemp("redact")
    rows = made_up_rows(11, 80)
    rows[7]["text"] = f"{SECRET}. " * 150
    rows[7]["id"] = "secret"
    files = write_parts(folder, rows, 40)
    flags = ["--shard_tokens=600", "--block_bytes=1", *KINDS[request.param]]
    build(folder / "out", files[0], *flags, "--keep_checkpoints")
    append(folder / "out", files[1], "--keep_checkpoints")
    return folder


@pytest.fixture
def dataset(grown: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grown / "out", tmp_path / "out"))
