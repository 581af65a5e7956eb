"""Exports from and to gs://: the bytes of a local export, whatever the network does."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_proxy import CUT_DOWNLOAD, CUT_UPLOAD, LOSE_ANSWER, Proxy
from support.growing import build, made_up_rows, write_rows
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import UsageError

pytestmark = pytest.mark.cloud

DATASET = "gs://data/out"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    rows = write_rows(folder / "rows.parquet", made_up_rows(2, 60))
    build(folder / "out", rows, "--shard_tokens=300", "--test_fraction=0.2")
    return folder / "out"


@pytest.fixture
def stored(cloud: Proxy, local: Path) -> Proxy:
    """The dataset on gs://."""
    from fineshards.storage.open import open_storage

    storage = open_storage(DATASET)
    for name, content in files_in(local).items():
        storage.write(name, content)
    return cloud


def objects(cloud: Proxy, folder: str) -> dict[str, bytes]:
    return {
        name.removeprefix(f"{folder}/"): cloud.content("data", name)
        for name in cloud.names("data")
        if name.startswith(f"{folder}/")
    }


@pytest.mark.parametrize("to", ["megatron", "olmo", "raw"])
def test_an_export_on_gs_has_the_bytes_of_a_local_one(
    stored: Proxy, local: Path, to: str, tmp_path: Path
) -> None:
    fineshards.export(local, tmp_path / "x", to, tokens_per_file=400)
    expected = files_in(tmp_path / "x")
    fineshards.export(DATASET, "gs://data/x", to, tokens_per_file=400)
    assert objects(stored, "x") == expected
    flags = ["--to", to, "--tokens_per_file=400", "--runner=DirectRunner"]
    assert main(["export", DATASET, *flags, "--output=gs://data/beam"]) == 0
    assert objects(stored, "beam") == expected
    for fault in (503, LOSE_ANSWER, CUT_UPLOAD):
        stored.fail("^POST /upload", fault, numbers=(2, 3))
    stored.fail("alt=media", CUT_DOWNLOAD, numbers=(3, 5))
    fineshards.export(DATASET, "gs://data/faults", to, tokens_per_file=400)
    assert objects(stored, "faults") == expected
    assert all(rule.hits for rule in stored.rules)
    assert main(["verify", "gs://data/faults"]) == 0


def test_links_across_stores_are_refused(stored: Proxy, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must both be on a local disk"):
        fineshards.export(DATASET, tmp_path / "x", "megatron", link=True)
