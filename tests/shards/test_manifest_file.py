"""The manifest as a file: what is kept, how damage and other versions are told, what it takes."""

import shutil
import sys
import tracemalloc
from pathlib import Path

import pytest
from support.damage import edit_manifest
from support.growing import append, build, made_up_rows, write_rows

from benchmarks.made_up_dataset import make_dataset
from fineshards import TokenDataset
from fineshards.errors import FineshardsError, OutputError
from fineshards.maintenance.redact import redact
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.record import seal_holds
from fineshards.storage.open import open_storage

MANIFEST = "metadata/manifest.json"
ROWS = made_up_rows(11, 120)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of both splits, appended to and then redacted. Read-only."""
    folder = tmp_path_factory.mktemp("grown")
    first = write_rows(folder / "first.parquet", ROWS[:60])
    build(folder / "out", first, "--shard_tokens=700", "--test_fraction=0.4")
    append(folder / "out", write_rows(folder / "second.parquet", ROWS[60:]))
    redact(str(folder / "out"), documents=[3, 70])
    return folder / "out"


def test_each_generation_is_one_record_that_is_kept_twice(grown: Path) -> None:
    for number in (1, 2, 3):
        stored = (grown / f"metadata/generations/{number:04d}.json").read_bytes()
        found = Manifest.load_finished(open_storage(str(grown)), number)
        assert (found.generation, found.to_bytes()) == (number, stored)
    assert stored == (grown / MANIFEST).read_bytes()


def test_a_manifest_is_read_where_no_seal_can_be_checked(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Manifest.load_finished(open_storage(str(grown)))
    monkeypatch.setitem(sys.modules, "fineshards.storage.checksums", None)
    assert seal_holds((grown / MANIFEST).read_bytes()) is None
    assert Manifest.load_finished(open_storage(str(grown))) == expected


def test_a_wrong_value_is_named_with_its_place(grown: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(grown, folder)
    edit_manifest(folder, lambda content: content["shards"][1].update(tokens="many"))
    with pytest.raises(
        OutputError, match=r"Expected `int`, got `str` - at `\$.shards\[1\].tokens`"
    ):
        Manifest.load(open_storage(str(folder)))


def test_a_layout_of_other_shards_is_found(grown: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(grown, folder)
    edit_manifest(folder, lambda content: content["layout"]["added"].append([0, 900]))
    with pytest.raises(FineshardsError, match="shards, expected"):
        TokenDataset(folder, sequence_length=8)


def test_opening_takes_a_few_times_the_memory_of_the_manifest(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    make_dataset(storage, 5_000 * 20, 20, files=900, empty=True)
    TokenDataset(tmp_path, sequence_length=8)  # imports
    tracemalloc.start()
    TokenDataset(tmp_path, sequence_length=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * (tmp_path / MANIFEST).stat().st_size
