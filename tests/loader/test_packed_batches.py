"""Batches of packed rows: the same on any number of ranks and after every restart."""

import json
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset, uneven
from fineshards import BatchLoader, Mixture, Packing, TokenDataset
from fineshards.storage.open import open_storage

LENGTH = 64
PACKING = Packing(rows=8, shuffle_windows=3)
FIELDS = ("inputs", "targets", "sample_ids", "source_ids")


def made(folder: Path, tokens: int, mean: int) -> TokenDataset:
    storage = open_storage(str(folder))
    make_dataset(storage, tokens, shard_tokens=1000, made=uneven(tokens, mean))
    return TokenDataset(folder, sequence_length=LENGTH)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    """69 samples: eight windows of eight rows, and one of five."""
    return made(tmp_path_factory.mktemp("packed") / "a", 69 * LENGTH + 20, 30)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    return made(tmp_path_factory.mktemp("packed") / "b", 30 * LENGTH + 1, 20)


def loader(source: Any, **given: Any) -> BatchLoader:
    given = {"seed": 3, "packing": PACKING, "fields": FIELDS} | given
    return BatchLoader(source, given.pop("batch_size", 8), **given)


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


def joined(parts: tuple[dict[str, np.ndarray], ...]) -> dict[str, np.ndarray]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def mixture(dataset: TokenDataset, other: TokenDataset) -> Mixture:
    return Mixture({"a": (dataset, 0.7), "b": (other, 0.3)})


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_ranks_batches_are_one_order(
    dataset: TokenDataset, other: TokenDataset, shuffle: bool, mixed: bool
) -> None:
    source = mixture(dataset, other) if mixed else dataset
    whole = list(islice(loader(source, shuffle=shuffle, prefetch=0), 30))
    for world_size in (2, 4):
        ranks: list[Iterator[dict[str, np.ndarray]]] = [
            loader(source, shuffle=shuffle, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for expected, parts in zip(whole, islice(zip(*ranks, strict=True), 30), strict=True):
            assert equal(joined(parts), expected)
        for rank in ranks:
            rank.close()  # type: ignore[attr-defined]


def pairs(batches: Iterator[dict[str, np.ndarray]]) -> np.ndarray:
    found = [batch["inputs"].astype(np.int64) << 32 | batch["targets"] for batch in batches]
    return np.sort(np.concatenate([each.ravel() for each in found]))


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_has_the_pairs_of_reading_without_packing(
    dataset: TokenDataset, shuffle: bool
) -> None:
    expected = pairs(loader(dataset, packing=None, epochs=1))
    packed = loader(dataset, shuffle=shuffle, epochs=1)
    orders = []
    for _ in range(3):
        batches = list(packed)
        assert np.array_equal(pairs(iter(batches)), expected)
        orders.append(np.concatenate([batch["sample_ids"] for batch in batches]).tolist())
        assert sorted(orders[-1]) == list(range(len(dataset)))
    assert (orders[0] != orders[1] != orders[2] != orders[0]) == shuffle


def test_rows_come_from_a_few_windows_at_a_time(dataset: TokenDataset) -> None:
    numbers = np.concatenate([batch["sample_ids"] for batch in loader(dataset, epochs=1)])
    windows = (numbers // 8).tolist()
    firsts = list(dict.fromkeys(windows))
    # Each group of three windows is used up before the next one begins.
    for at in range(0, len(firsts), 3):
        places = [place for place, window in enumerate(windows) if window in firsts[at : at + 3]]
        assert places == list(range(places[0], places[-1] + 1))
    assert windows != sorted(windows)


@pytest.mark.parametrize("mixed", [False, True])
def test_it_resumes_at_every_step(dataset: TokenDataset, other: TokenDataset, mixed: bool) -> None:
    source = mixture(dataset, other) if mixed else dataset
    running = loader(source)
    states, batches = [], []
    for _ in range(20):
        states.append(json.loads(json.dumps(running.state_dict())))
        batches.append(next(running))
    running.close()
    for step, state in enumerate(states):
        resumed = loader(source, prefetch=step % 3)
        resumed.load_state_dict(state)
        for expected in batches[step : step + 3]:
            assert equal(next(resumed), expected)
        resumed.close()


def test_a_state_of_another_packing_is_refused(dataset: TokenDataset) -> None:
    state = loader(dataset).state_dict()
    for packing in (None, Packing(rows=9), Packing(rows=8, shuffle_windows=4)):
        assert "packing is '{" in refused(
            lambda packing=packing: loader(dataset, packing=packing).load_state_dict(state)
        )


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_cap_gives_every_batch_the_same_shapes(dataset: TokenDataset, most: int) -> None:
    fields = ("inputs", "targets", "document_ids", "cu_seqlens")
    packing = Packing(rows=8, max_documents=most, shuffle_windows=3)
    reached = 0
    batches = list(loader(dataset, fields=fields, packing=packing, epochs=1))
    for batch in batches:
        rows = len(batch["inputs"])
        assert batch["cu_seqlens"].shape == (rows * most + 1,)
        assert batch["cu_seqlens"][-1] == rows * LENGTH
        assert (np.diff(batch["cu_seqlens"]) >= 0).all()
        assert batch["document_ids"].max() < most
        reached += int((batch["document_ids"].max(axis=1) == most - 1).sum())
    assert reached > len(dataset) / 2
    expected = pairs(loader(dataset, packing=None, epochs=1))
    assert np.array_equal(pairs(iter(batches)), expected)


@pytest.mark.parametrize("packing", [None, PACKING])
@pytest.mark.parametrize("dtype", ["uint32", "int64"])
@pytest.mark.parametrize("size", [1, 8])
def test_no_two_fields_share_memory(
    dataset: TokenDataset, packing: Packing | None, dtype: str, size: int
) -> None:
    fields = ("inputs", "targets", "labels")
    given = {"packing": packing, "dtype": dtype, "batch_size": size}
    for names, ignored in ((fields[:2], None), (fields, -100 if dtype == "int64" else 2**32 - 1)):
        with loader(dataset, fields=names, ignore_index=ignored, **given) as batches:
            batch, following = next(batches), next(batches)
        for key in names:
            others = [each[name] for each in (batch, following) for name in names]
            shared = [np.shares_memory(batch[key], each) for each in others]
            assert shared.count(True) == 1


def test_a_packing_loader_is_pickled_after_use(dataset: TokenDataset) -> None:
    """As torch's DataLoader does for workers that are spawned."""
    used = loader(dataset)
    next(used)
    again = pickle.loads(pickle.dumps(used))
    assert equal(next(again), next(used))
    used.close()
    again.close()
