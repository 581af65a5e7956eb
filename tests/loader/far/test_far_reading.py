"""Reading from a far service: which requests are sent, how many at once, and what faults do."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.checkout import ROOT
from support.faulty_proxy import CUT_DOWNLOAD
from support.gcs_input import Stored

from benchmarks.far_server import FarServer, far_server
from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.cloud

SHARD_TOKENS = 1000
LENGTH = 64


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarServer]:
    """A server with gs://data/set, of 20 shards."""
    folder = tmp_path_factory.mktemp("far")
    make_dataset(open_storage(str(folder / "data/set")), 20_000, SHARD_TOKENS)
    with far_server(folder, 0) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.address)
        yield server


def content_requests(counts: Counter[str]) -> int:
    return sum(count for name, count in counts.items() if name.startswith("data/"))


def opened_set() -> TokenDataset:
    """The dataset, with all shards opened, and a client in each thread that sends requests."""
    dataset = TokenDataset("gs://data/set", sequence_length=LENGTH)
    dataset.gather(np.random.default_rng(0).permutation(len(dataset))[:200])
    dataset.gather(np.arange(0, len(dataset), SHARD_TOKENS // LENGTH))
    assert len(dataset) * LENGTH // SHARD_TOKENS == 19
    return dataset


def test_a_random_batch_is_one_request_per_sample_many_at_once(far: FarServer) -> None:
    dataset = opened_set()
    inside = [i for i in range(len(dataset)) if i * LENGTH % 1000 <= 1000 - LENGTH - 1]
    numbers = np.array(random.Random(1).sample(inside, 80))
    far.counts()
    far.hold(80)
    gathered = dataset.gather(numbers)
    assert content_requests(far.counts()) == 80
    expected = [stream(i * LENGTH, (i + 1) * LENGTH + 1) for i in numbers.tolist()]
    assert np.array_equal(gathered, expected)


def test_both_parts_of_a_sample_across_shards_are_requested_at_once(far: FarServer) -> None:
    dataset = opened_set()
    far.counts()
    far.hold(2)
    sample = next(i for i in range(len(dataset)) if i * LENGTH % 1000 > 1000 - LENGTH)
    assert np.array_equal(dataset[sample], stream(sample * LENGTH, (sample + 1) * LENGTH + 1))
    assert content_requests(far.counts()) == 2


def test_what_is_requested_ahead_is_not_requested_again(far: FarServer) -> None:
    dataset = opened_set()
    parts = np.split(np.random.default_rng(2).permutation(len(dataset))[:90], 3)
    far.counts()
    far.hold(90)
    for part in parts:
        dataset.request(part)
    dataset.request(parts[1])
    gathered = np.concatenate([dataset.gather(part) for part in parts])
    across = sum(i * LENGTH % 1000 > 1000 - LENGTH - 1 for part in parts for i in part.tolist())
    assert content_requests(far.counts()) <= 90 + across
    expected = [stream(i * LENGTH, (i + 1) * LENGTH + 1) for i in np.concatenate(parts).tolist()]
    assert np.array_equal(gathered, expected)


def test_a_loader_requests_every_sample_of_an_epoch_once(far: FarServer) -> None:
    dataset = opened_set()
    far.counts()
    with BatchLoader(dataset, 32, seed=3, epochs=1, prefetch=3) as loader:
        rows = np.concatenate(list(loader))
    across = sum(i * LENGTH % 1000 > 1000 - LENGTH - 1 for i in range(len(dataset)))
    assert content_requests(far.counts()) <= len(dataset) + across + 20
    assert sorted(rows[:, 0].tolist()) == sorted(stream(0, 20_000)[: len(rows) * 64 : 64].tolist())


def test_one_window_of_tokens_is_one_request_per_shard_all_at_once(far: FarServer) -> None:
    dataset = opened_set()
    far.counts()
    far.hold(4)
    assert np.array_equal(dataset.read_tokens(1500, 4500), stream(1500, 4500))
    assert content_requests(far.counts()) == 4


def test_a_pickled_dataset_reads_the_same(far: FarServer) -> None:
    dataset = opened_set()
    copy = pickle.loads(pickle.dumps(dataset))
    assert np.array_equal(copy[7], dataset[7])


def test_a_dataset_closed_by_another_thread_reads_on(far: FarServer) -> None:
    dataset = opened_set()
    numbers = np.random.default_rng(4).permutation(len(dataset))[:250]
    far.hold(1000)
    with ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(dataset.gather, numbers)
        while not (far.counts()["open"] or gathering.done()):
            time.sleep(0.01)
        dataset.close()
        far.hold(0)
        gathered = gathering.result()
    expected = [stream(i * LENGTH, (i + 1) * LENGTH + 1) for i in numbers.tolist()]
    assert np.array_equal(gathered, expected)


def test_a_shard_that_was_replaced_is_opened_once_again(
    far: FarServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("set", "again"):
        make_dataset(open_storage(str(tmp_path / "data" / name)), 3500, 1000)
    with far_server(tmp_path, 0.1) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        dataset = TokenDataset("gs://data/set", sequence_length=10)
        dataset[310]
        name = "train/train_0003.npy"
        os.replace(tmp_path / "data/again" / name, tmp_path / "data/set" / name)
        server.counts()
        numbers = np.arange(301, 345)
        gathered = dataset.gather(numbers)
        expected = [stream(i * 10, i * 10 + 11) for i in numbers.tolist()]
        assert np.array_equal(gathered, expected)
        assert server.counts()[f"about data/set/{name}"] == 1


def test_a_process_ends_at_once_while_its_requests_wait(tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path / "data/set")), 20_000, 1000)
    program = """
import os, signal, sys
import numpy as np
from fineshards.loader.token_dataset import TokenDataset
dataset = TokenDataset("gs://data/set", sequence_length=10)
dataset[0]
os.kill(int(sys.argv[1]), signal.SIGSTOP)
dataset.request(np.arange(1, 300))
"""
    with far_server(tmp_path, 0) as server:
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, str(server.process)],
                cwd=ROOT,
                env=os.environ | {"STORAGE_EMULATOR_HOST": server.address},
                capture_output=True,
                text=True,
                timeout=50,
                check=False,
            )
        finally:
            os.kill(server.process, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("fault", [CUT_DOWNLOAD, 429, 503])
def test_requests_that_fail_are_made_again_by_the_library(stored: Stored, fault: int | str) -> None:
    root = f"{stored.url}/set"
    make_dataset(open_storage(root), 5000, 1000)
    dataset = TokenDataset(root, sequence_length=100)
    dataset[0]
    rule = stored.proxy.fail(r"GET.*train_.*alt=media", fault, range(3, 60, 9))
    numbers = np.random.default_rng(5).permutation(len(dataset))
    expected = [stream(i * 100, i * 100 + 101) for i in numbers.tolist()]
    assert np.array_equal(dataset.gather(numbers), expected)
    assert rule.hits > 3


def test_a_packed_window_is_one_request(far: FarServer, tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path / "set")), 20_000, SHARD_TOKENS)
    near = TokenDataset(tmp_path / "set", sequence_length=LENGTH)
    dataset = TokenDataset("gs://data/set", sequence_length=LENGTH)
    options = {"packing": Packing(rows=4, shuffle_windows=4), "epochs": 1}
    far.counts()
    for ours, expected in zip(
        BatchLoader(dataset, 8, **options), BatchLoader(near, 8, **options), strict=True
    ):
        assert np.array_equal(ours["inputs"], expected["inputs"])
        assert np.array_equal(ours["targets"], expected["targets"])
    windows = [(at, min(at + 4, len(dataset))) for at in range(0, len(dataset), 4)]
    # One more where a window goes on in the next shard, and one for each shard's header.
    shards = [
        stop * LENGTH // SHARD_TOKENS - first * LENGTH // SHARD_TOKENS + 1
        for first, stop in windows
    ]
    assert content_requests(far.counts()) == sum(shards) + 20
