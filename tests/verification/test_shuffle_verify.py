"""Verify on shuffled datasets: the order of the keys."""

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.checkout import ROOT
from support.damage import edit_manifest, edit_table

import fineshards
from fineshards.errors import FineshardsError

pytestmark = pytest.mark.growing

SHARD = "train/train_0001.npy"
TABLE = "metadata/documents/train_0001.parquet"


@pytest.fixture(scope="module", params=[{"test_fraction": 0.2}, {"test_shards": 1}], ids=str)
def undamaged(request: Any, sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shuffle-verify")
    table = pq.read_table(sample)
    pq.write_table(table.slice(0, 60), folder / "a.parquet")
    pq.write_table(table.slice(60, 60), folder / "b.parquet")
    tokenizer = ROOT / "tests/fixtures/tokenizer.json"
    build_here(
        input=folder / "*.parquet",
        output=folder / "out",
        tokenizer=tokenizer,
        shard_tokens=20_000,
        shuffle_seed=3,
        **request.param,
    )
    return folder / "out"


@pytest.fixture
def dataset(undamaged: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(undamaged, tmp_path / "copy"))


def problems_of(folder: Path) -> str:
    return "\n".join(fineshards.verify(folder).problems)


def test_an_undamaged_dataset_passes_with_all_documents_tokenized_again(undamaged: Path) -> None:
    verdict = fineshards.verify(undamaged, sample=100)
    assert (verdict.problems, verdict.documents, verdict.sampled) == ([], 120, 120)


def whole_rows(rows: dict[str, list[Any]]) -> list[int]:
    """The rows of documents that lie in this shard as a whole."""
    return list(range(1, len(rows["row"]) - 1))


def swap(rows: dict[str, list[Any]], first: int, second: int) -> None:
    """Exchanges the sources of two documents, as if each were where the other is."""
    for name in rows:
        if name not in ("document", "offset", "length", "start"):
            own = rows[name]
            own[first], own[second] = own[second], own[first]


@pytest.mark.parametrize("distance", [1, 5])
def test_two_documents_swapped_in_a_table(dataset: Path, distance: int) -> None:
    """Also two of one source file, whose sums stay as they were."""

    def change(rows: dict[str, list[Any]]) -> None:
        for first in whole_rows(rows)[:-distance]:
            if rows["file"][first] == rows["file"][first + distance]:
                return swap(rows, first, first + distance)
        raise AssertionError("there are none")

    edit_table(dataset, SHARD, change)
    assert f"{TABLE}: its documents are not in the order of the keys of the shuffle" in problems_of(
        dataset
    )


def test_a_shard_that_does_not_continue_the_document_of_the_one_before(dataset: Path) -> None:
    """Both tables are in order, but the last document of one is not the first of the next."""
    later = pq.read_table(dataset / TABLE).slice(3, 1).to_pylist()[0]
    assert pq.read_table(dataset / TABLE)["start"][0].as_py() > 0

    def change(rows: dict[str, list[Any]]) -> None:
        for name in rows:
            if name not in ("document", "offset", "length", "start"):
                rows[name][-1] = later[name]

    edit_table(dataset, "train/train_0000.npy", change)
    problems = problems_of(dataset)
    assert "not in the order" not in problems
    assert re.search(rf"{TABLE} begins with .*, row .* does not continue", problems)


@pytest.mark.parametrize("shuffle", [{"seed": 3, "key_version": 2}, {"seed": -1, "key_version": 1}])
def test_keys_of_another_version_are_refused(dataset: Path, shuffle: dict[str, int]) -> None:
    edit_manifest(dataset, lambda content: content["settings"].update(shuffle=shuffle))
    with pytest.raises(FineshardsError, match=r"manifest\.json"):
        fineshards.status(dataset)
