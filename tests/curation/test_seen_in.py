"""seen_in: documents that other datasets or files have are dropped, and named by their witness."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.checkout import SAMPLE

import fineshards
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.tables.decisions import read_decisions
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.curation

TEXTS: list[str] = pq.read_table(SAMPLE)["text"].to_pylist()
EXACT = '[[steps]]\nuse = "exact"\n'


def write(path: Path, numbers: list[int]) -> Path:
    """A source with documents of the sample, by number."""
    urls = [f"https://example.org/{number}" for number in numbers]
    pq.write_table(pa.table({"text": [TEXTS[n] for n in numbers], "url": urls}), path)
    return path


def build(folder: Path, source: Path, recipe: str, **flags: Any) -> Manifest:
    place = folder.with_suffix(".toml")
    place.write_text(recipe)
    return build_here(input=source, output=folder, recipe=place, **flags)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of documents 10 to 29 with their keys, whose source is beside it."""
    folder = tmp_path_factory.mktemp("old")
    source = write(folder / "old.parquet", list(range(10, 30)))
    build(folder / "dataset", source, EXACT, keep_keys=True)
    return folder


def dropped(folder: Path) -> list[tuple[int, int | None, int | None]]:
    """Row, witness's file and row of each document that was dropped."""
    table = read_decisions(open_storage(str(folder)), 0).table
    return [(e["row"], e["witness_file"], e["witness_row"]) for e in table.to_pylist()]


@pytest.mark.parametrize("by", ["datasets", "files"])
def test_what_an_index_has_is_dropped_and_named(by: str, old: Path, tmp_path: Path) -> None:
    place = old / ("dataset" if by == "datasets" else "old.parquet")
    # Document 40 comes twice: documents of the job are not compared with each other.
    numbers = [0, 12, 40, 29, 40, 5, 10]
    source = write(tmp_path / "new.parquet", numbers)
    recipe = f'[[steps]]\nuse = "seen_in"\n{by} = ["{place}"]\n'
    manifest = build(tmp_path / "out", source, recipe)
    assert dropped(tmp_path / "out") == [(1, -1, 2), (3, -1, 19), (6, -1, 0)]
    assert manifest.totals["documents"] == 4
    assert fineshards.verify(tmp_path / "out", sample=100).problems == []


def test_an_index_by_another_column_finds_other_documents(old: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "new.parquet", [15, 31])
    table = pq.read_table(source)
    other = pa.array(["https://example.org/99", "HTTPS://EXAMPLE.org:443/20#top"])
    pq.write_table(table.set_column(1, "url", other), source)
    recipe = f'[[steps]]\nuse = "seen_in"\nfiles = ["{old}/old.parquet"]\noptions = {{by="url"}}\n'
    build(tmp_path / "out", source, recipe)
    assert dropped(tmp_path / "out") == [(1, -1, 10)]


@pytest.mark.parametrize("verify", ["none", "jaccard"])
def test_keys_of_near_duplicates_are_the_same_however_these_were_compared(
    verify: str, tmp_path: Path
) -> None:
    first = write(tmp_path / "old.parquet", list(range(10, 30)))
    step = f'[[steps]]\nuse = "minhash"\nverify = "{verify}"\n'
    build(tmp_path / "dataset", first, step, keep_keys=True)
    source = write(tmp_path / "new.parquet", [3, 12, 40])
    recipe = f'[[steps]]\nuse = "seen_in"\nby = "minhash"\ndatasets = ["{tmp_path}/dataset"]\n'
    build(tmp_path / "out", source, recipe)
    assert dropped(tmp_path / "out") == [(1, -1, 2)]
    refused = f'{recipe}options = {{verify="jaccard"}}\n'
    with pytest.raises(UsageError, match='verify must be "none": texts of other datasets'):
        build(tmp_path / "refused", source, refused)
    refused = f'{recipe}options = {{within="file"}}\n'
    with pytest.raises(UsageError, match='within must not be "file": other datasets have other'):
        build(tmp_path / "refused", source, refused)


def test_a_dataset_without_such_keys_is_refused(old: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "new.parquet", [1])
    recipe = f'[[steps]]\nuse = "seen_in"\nby = "minhash"\ndatasets = ["{old}/dataset"]\n'
    with pytest.raises(UsageError, match="has no keys of a step minhash"):
        build(tmp_path / "out", source, recipe)
    assert not (tmp_path / "out").exists()


def test_keys_that_were_damaged_are_noticed(old: Path, tmp_path: Path) -> None:
    (keys,) = (old / "dataset/metadata/keys").iterdir()
    content = keys.read_bytes()
    keys.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    source = write(tmp_path / "new.parquet", [1])
    recipe = f'[[steps]]\nuse = "seen_in"\ndatasets = ["{old}/dataset"]\n'
    try:
        with pytest.raises(InputError, match="changed since"):
            build(tmp_path / "out", source, recipe)
    finally:
        keys.write_bytes(content)


def test_a_dataset_that_looks_elsewhere_grows_without_keys(old: Path, tmp_path: Path) -> None:
    first = write(tmp_path / "first.parquet", [0, 12])
    second = write(tmp_path / "second.parquet", [13, 2])
    recipe = f'[[steps]]\nuse = "seen_in"\ndatasets = ["{old}/dataset"]\n'
    build(tmp_path / "out", first, recipe)
    manifest = fineshards.append(tmp_path / "out", input=second)
    assert manifest.totals["documents"] == 2
    assert fineshards.verify(tmp_path / "out", sample=100).problems == []


def test_short_flags_are_the_job_of_a_recipe(tmp_path: Path) -> None:
    source = write(tmp_path / "new.parquet", [0, 1, 2, 1, 0])
    recipe = f'[[steps]]\nuse = "where"\nsql = "length(text) > 20"\n{EXACT}'
    one = build(tmp_path / "recipe", source, recipe)
    sql = "length(text) > 20"
    two = build_here(input=source, output=tmp_path / "flags", where=sql, dedup="exact")
    assert one.fingerprint == two.fingerprint
    assert one.totals["documents"] == 3
