"""TokenDataset and BatchLoader on s3://: the batches of a local copy, also as requests fail."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.faulty_proxy import CUT_DOWNLOAD, LOSE_ANSWER
from support.s3_proxy import S3Proxy

from benchmarks.made_up_dataset import make_dataset
from fineshards.errors import OutputError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.cloud

PLACE = "s3://data/sets/made-up"
TOKENS, SHARD_TOKENS = 20_011, 1000


@pytest.fixture
def local(s3: S3Proxy, tmp_path: Path) -> str:
    """The folder of a dataset that is on s3:// too."""
    for place in (str(tmp_path / "set"), PLACE):
        make_dataset(open_storage(place), TOKENS, SHARD_TOKENS, test_shards=1)
    return str(tmp_path / "set")


def batches(place: str, cache: Path | None = None) -> npt.NDArray[np.unsignedinteger]:
    dataset = TokenDataset(place, sequence_length=50, cache_folder=cache)
    with BatchLoader(dataset, 8, seed=3, epochs=1) as loader:
        return np.concatenate([batch.copy() for batch in loader])


def test_batches_are_those_of_a_local_copy(s3: S3Proxy, local: str) -> None:
    assert np.array_equal(batches(PLACE), batches(local))


def test_batches_are_the_same_over_a_failing_network(s3: S3Proxy, local: str) -> None:
    for place, fault in enumerate((503, 500, CUT_DOWNLOAD, LOSE_ANSWER)):
        s3.fail("^GET .*npy", fault, range(2 + place, 1000, 17))
    assert np.array_equal(batches(PLACE), batches(local))
    assert all(rule.hits for rule in s3.rules)


def test_a_cache_folder_holds_what_was_read(s3: S3Proxy, local: str, tmp_path: Path) -> None:
    expected = batches(local)
    assert np.array_equal(batches(PLACE, tmp_path / "cache"), expected)
    s3.requests.clear()
    assert np.array_equal(batches(PLACE, tmp_path / "cache"), expected)
    assert s3.count("GET .*npy") == 0


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(s3: S3Proxy, local: str) -> None:
    storage = open_storage(PLACE)
    ranges = storage.open_ranges("train/train_0001.npy")
    content = storage.read("train/train_0001.npy")
    assert ranges.read_at(100, 300) == content[100:300]
    assert ranges.size == len(content)
    version = storage.version("train/train_0001.npy")
    storage.replace("train/train_0001.npy", bytes(len(content)), version)
    with pytest.raises(OutputError, match=r"train_0001\.npy was changed or deleted while it was"):
        ranges.read_at(100, 300)
