"""What the loader reads of a manifest, compared with all of it."""

from __future__ import annotations

import random
import shutil
import sys
import tracemalloc
from pathlib import Path

import pytest
from support.damage import edit_manifest
from support.growing import append, build, made_up_rows, write_rows

from benchmarks.made_up_dataset import make_dataset
from fineshards import TokenDataset
from fineshards.errors import FineshardsError
from fineshards.maintenance.redact import redact
from fineshards.shards.job.content_fingerprint import content_fingerprint
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_part import ManifestPart
from fineshards.shards.job.seal import seal_holds
from fineshards.shards.layout import SPLITS
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


def whole(folder: Path, generation: int | None = None) -> ManifestPart:
    """The part, made from all of the manifest."""
    manifest = Manifest.load_finished(open_storage(str(folder)), generation)
    eot = manifest.settings.tokenizer.eot
    shards = {split: [each for each in manifest.shards if each.split == split] for split in SPLITS}
    fingerprints = {
        split: content_fingerprint(found, eot, redactions=False) for split, found in shards.items()
    }
    return ManifestPart(manifest.settings, manifest.layout, manifest.generations, fingerprints)


def part(folder: Path, generation: int | None = None) -> ManifestPart:
    return ManifestPart.load_finished(open_storage(str(folder)), generation)


@pytest.mark.parametrize("generation", [None, 1, 2, 3])
def test_the_part_is_that_of_the_whole(grown: Path, generation: int | None) -> None:
    assert seal_holds((grown / MANIFEST).read_bytes())
    assert part(grown, generation) == whole(grown, generation)


def test_it_is_that_of_the_whole_where_no_seal_can_be_checked(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fineshards.storage.checksums", None)
    assert not seal_holds((grown / MANIFEST).read_bytes())
    assert part(grown) == whole(grown)


def test_a_damaged_manifest_is_judged_as_the_whole_is(grown: Path, tmp_path: Path) -> None:
    folder, choose = tmp_path / "copy", random.Random(0)
    shutil.copytree(grown, folder)
    stored = (grown / MANIFEST).read_bytes()

    def outcome(read: object) -> object:
        try:
            return read(folder)  # type: ignore[operator]
        except FineshardsError as error:
            return str(error)

    for _ in range(150):
        damaged = bytearray(stored)
        damaged[choose.randrange(len(stored))] ^= 1 << choose.randrange(8)
        (folder / MANIFEST).write_bytes(damaged)
        assert not seal_holds(bytes(damaged))
        assert outcome(part) == outcome(whole)


def test_a_changed_checksum_of_a_shard_is_found(grown: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(grown, folder)
    edit_manifest(folder, lambda content: content["shards"][1].update(crc32c="AAAAAA=="))
    with pytest.raises(FineshardsError, match="its content fingerprint is"):
        TokenDataset(folder, sequence_length=8)


def test_a_layout_of_other_shards_is_found(grown: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(grown, folder)
    edit_manifest(folder, lambda content: content["layout"]["added"].append([0, 900]))
    with pytest.raises(FineshardsError, match="shards, expected"):
        TokenDataset(folder, sequence_length=8)


def test_opening_takes_little_more_memory_than_the_manifest(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    make_dataset(storage, 5_000 * 20, 20, files=900, empty=True)
    TokenDataset(tmp_path, sequence_length=8)  # imports
    tracemalloc.start()
    TokenDataset(tmp_path, sequence_length=8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (tmp_path / MANIFEST).stat().st_size
