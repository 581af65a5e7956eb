"""TokenDataset and BatchLoader on gs://, against a real server of the Cloud Storage API."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkout import ROOT
from support.faulty_proxy import Proxy
from support.gcs_input import Stored
from support.gcs_server import client_environment, make_bucket

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.errors import OutputError, UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.far import remote_shards
from fineshards.loader.far.remote_shards import FarShards
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage
from fineshards.storage.ranges import submit

pytestmark = pytest.mark.cloud

ADDRESS = "gs://data/sets/made-up"
TOKENS = 20_011
SHARD_TOKENS = 1000


@pytest.fixture(scope="module")
def server(gcs_proxy: Proxy) -> Iterator[str]:
    """The address of a server with two datasets; all tests share it, as a process has only one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", gcs_proxy.address)
        if gcs_proxy.ask("GET", "/storage/v1/b/data").status == 404:
            make_bucket(f"http://{gcs_proxy.upstream}", "data")
        for dtype in ("uint32", "uint16"):
            storage = open_storage(f"{ADDRESS}-{dtype}")
            make_dataset(storage, TOKENS, SHARD_TOKENS, test_shards=1, dtype=dtype)
        yield gcs_proxy.address


@pytest.fixture
def fetched(server: str, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How often each range, (shard, first byte), was requested."""
    counts: Counter[tuple[int, int]] = Counter()
    read = FarShards.read

    def counted(self: FarShards, shard: int, start: int, stop: int) -> bytes:
        counts[shard, start] += 1
        return read(self, shard, start, stop)

    monkeypatch.setattr(FarShards, "read", counted)
    return counts


@pytest.mark.parametrize(("dtype", "length"), [("uint32", 10), ("uint16", 999), ("uint32", 1500)])
@pytest.mark.parametrize("block", [100, 8 << 20])
def test_samples_are_the_stream(
    server: str, dtype: str, length: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """block: the largest request, in bytes."""
    monkeypatch.setattr(remote_shards, "BLOCK_BYTES", block)
    dataset = TokenDataset(f"{ADDRESS}-{dtype}", sequence_length=length)
    numbers = np.random.default_rng(0).integers(0, len(dataset), 5)
    numbers[:2] = 0, len(dataset) - 1
    dataset.request(numbers[:4])
    gathered = dataset.gather(numbers)
    for i, sample in zip(numbers, gathered, strict=True):
        start = SHARD_TOKENS + i * length
        assert np.array_equal(sample, stream(start, start + length + 1))
    start, stop = 995, len(dataset) * length
    assert np.array_equal(
        dataset.read_tokens(start, stop), stream(SHARD_TOKENS + start, SHARD_TOKENS + stop)
    )
    dataset.close()
    assert np.array_equal(dataset.gather(numbers), gathered)


def test_samples_in_order_are_one_request_per_batch(fetched: Counter[tuple[int, int]]) -> None:
    dataset = TokenDataset(f"{ADDRESS}-uint32", sequence_length=50)
    with BatchLoader(dataset, 8, shuffle=False, epochs=1, drop_last=False) as loader:
        batches = sum(1 for _ in loader)
    # Each of the 20 shards but the first begins another one.
    assert batches <= sum(fetched.values()) <= batches + 19


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Future[Any]]:
    """All requests for bytes of shards."""
    requests = []

    def recorded(action: Callable[[], Any]) -> Future[Any]:
        requests.append(submit(action))
        return requests[-1]

    monkeypatch.setattr(remote_shards, "submit", recorded)
    return requests


def test_a_missing_or_damaged_shard_is_named_and_read_again_after_a_repair(
    server: str, submitted: list[Future[Any]]
) -> None:
    root = "gs://data/harmed"
    storage = open_storage(root)
    make_dataset(storage, 5000, 1000)
    dataset = TokenDataset(root, sequence_length=100)
    name = "train/train_0002.npy"
    content = storage.read(name)
    for harm, said in [
        (None, "cannot be read: there is no such object"),
        (content[:-4], "has 4,124 bytes, expected 4,128"),
        (b"x" + content[1:], "is not a .npy file"),
        (b"", "has 0 bytes"),
    ]:
        # A read that fails leaves requests in flight, which would see the shard change.
        wait(submitted)
        storage.delete(name)
        if harm is not None:
            storage.write(name, harm)
        for numbers in ([25], [0, 25, 41], range(len(dataset))):
            with pytest.raises(OutputError, match=r"train_0002\.npy") as caught:
                dataset.gather(np.array(numbers))
            assert said in str(caught.value)
        assert np.array_equal(dataset[45], stream(4500, 4601))
    wait(submitted)
    storage.delete(name)
    storage.write(name, content)
    assert np.array_equal(dataset[25], stream(2500, 2601))


def test_an_unfinished_dataset_and_an_empty_split_are_refused(server: str) -> None:
    with pytest.raises(OutputError, match="gs://data/none holds no finished dataset"):
        TokenDataset("gs://data/none", sequence_length=10)
    make_dataset(open_storage("gs://data/all-train"), 50, 10)
    with pytest.raises(UsageError, match="the test split is empty"):
        TokenDataset("gs://data/all-train", "test", sequence_length=10)


def test_forked_processes_can_read_and_exit_at_any_time(server: str, tmp_path: Path) -> None:
    """As DataLoader's workers do. Nothing hangs, even with requests in flight."""
    program = f"""
import os, sys
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.token_dataset import TokenDataset
dataset = TokenDataset({ADDRESS + "-uint32"!r}, sequence_length=50)
loader = BatchLoader(dataset, 16, prefetch=4)
first = next(loader)
print(first.sum(), flush=True)
child = os.fork()
if child == 0:
    loader.restart()
    print(next(loader).sum(), flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=client_environment(server) | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first == second
    assert os.listdir(tmp_path) == []


# Through a proxy that records requests and makes some of them fail


def test_opening_is_a_request_for_the_manifest_and_a_look_for_a_later_one(stored: Stored) -> None:
    root = f"{stored.url}/set"
    make_dataset(open_storage(root), 5000, 100)
    before = len(stored.proxy.requests)
    dataset = TokenDataset(root, sequence_length=50)
    lines = [request.line for request in stored.proxy.requests[before:]]
    assert len(lines) == 2
    assert "metadata/manifest.json" in lines[0]
    assert "metadata/generations/0002.json?" in lines[1]
    # A sample needs one request for its chunk. Opening and checking its shard needs two.
    before = len(stored.proxy.requests)
    assert np.array_equal(dataset[14], stream(700, 751))
    lines = [request.line for request in stored.proxy.requests[before:]]
    assert len(lines) == 3
    assert all("train_0007" in line for line in lines)


def test_failed_requests_are_retried_and_samples_are_right(stored: Stored) -> None:
    root = f"{stored.url}/set"
    make_dataset(open_storage(root), 5000, 1000)
    rule = stored.proxy.fail("GET.*train_", 503, range(2, 40, 4))
    dataset = TokenDataset(root, sequence_length=100)
    with BatchLoader(dataset, 7, shuffle=False, epochs=1) as loader:
        rows = np.concatenate(list(loader))
    assert rule.hits > 3
    assert np.array_equal(rows[:, :-1].ravel(), stream(0, 4900))


def test_a_forbidden_shard_is_named_in_one_sentence(stored: Stored) -> None:
    root = f"{stored.url}/set"
    make_dataset(open_storage(root), 5000, 1000)
    dataset = TokenDataset(root, sequence_length=100)
    with BatchLoader(dataset, 10, shuffle=False, epochs=1) as loader:
        stored.proxy.fail("GET.*train_0003.*alt=media", 403, range(1, 1000))
        next(loader)
        with pytest.raises(OutputError, match=r"train_0003\.npy cannot be read: no permission"):
            list(loader)
        # Its first token is the last label of the previous batch.
        assert loader.consumed == 20
        stored.proxy.rules.clear()
        assert sum(map(len, loader)) == 29
