"""Orders and reads of several sources together: the same batches, for little more work."""

import sys
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.numbered_samples import Numbers
from support.scalar_permutation import ScalarPermutation, scalar_key

from benchmarks.made_up_dataset import make_dataset, stream, uneven
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.joined_datasets import JoinedDatasets
from fineshards.loader.memory import Memory
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.packing import Packing
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

SIZES = (1, 3, 64, 4096, 4097, 5000, 70_000, 2**40)


@cache
def scalar_shuffle(source: int, epoch: int) -> ScalarPermutation:
    return ScalarPermutation(SIZES[source], scalar_key(5, "epoch", f"source {source}", epoch))


def test_sources_of_all_sizes_are_shuffled_as_each_would_be_alone() -> None:
    sources = {
        f"source {number}": (Numbers(size, number), min(size, 5000))
        for number, size in enumerate(SIZES)
    }
    mixed = Mixture(sources, seed=2)
    loader = BatchLoader(mixed, 96, seed=5)
    # Tables, networks of different widths, and sources that begin again.
    for step, batch in enumerate(islice(loader, 120)):
        for row, (source, low, high) in enumerate(batch.tolist()):
            name, number = mixed[96 * step + row]
            epoch, place = divmod(number, SIZES[source])
            assert name == f"source {source}"
            assert (high << 32) + low == scalar_shuffle(source, epoch).forward(place)


def calls_per_batch(source: Any, **given: Any) -> float:
    """Calls of functions, which a source's batches cost as long as they are small."""
    loader, calls = BatchLoader(source, 64, prefetch=0, **given), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for _ in range(128):
        next(loader)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for _ in range(256):
            next(loader)
    finally:
        sys.setprofile(before)
    return calls / 256


def fifty(folder: Path, length: int) -> Mixture:
    datasets = [TokenDataset(folder, sequence_length=length) for _ in range(50)]
    return Mixture({f"source {number}": (each, 1) for number, each in enumerate(datasets)})


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_rows_in_order_are_the_samples_within_and_across_shards(
    tmp_path: Path, mapped: bool, dtype: str
) -> None:
    make_dataset(open_storage(str(tmp_path)), 4001, 501)
    dataset = TokenDataset(tmp_path, sequence_length=8, mapped=mapped)
    for size in (1, 3, 16, 200):
        loader = BatchLoader(dataset, size, shuffle=False, dtype=dtype)
        rows = np.concatenate(list(islice(loader, -(-500 // size))))
        expected = [stream(at % 500 * 8, at % 500 * 8 + 9) for at in range(len(rows))]
        assert np.array_equal(rows, expected)
    for each in ([3, 4, 5], [5, 4, 6], [2, 2, 4], [7], []):
        numbers = np.array(each, np.int64)
        joined = JoinedDatasets.of([dataset])
        assert joined is not None
        zeros = np.zeros_like(numbers)
        found, largest = joined.gather(Memory(1), np.dtype(dtype), zeros, numbers)
        assert np.array_equal(found, dataset.gather(numbers))
        assert largest == found.max(initial=0)


def test_fifty_packed_sources_are_hardly_more_work_than_one(tmp_path: Path) -> None:
    documents = uneven(40_001, 30)
    make_dataset(open_storage(str(tmp_path)), 40_001, 20_000, made=documents)
    dataset, mixed = TokenDataset(tmp_path, sequence_length=64), fifty(tmp_path, 64)
    # All windows are kept and no file is closed, so that only reading is counted.
    packing = Packing(rows=64, shuffle_windows=10)
    one = calls_per_batch(dataset, packing=packing)
    # Four calls for each source in a batch. There are sixty where each is read by itself.
    assert calls_per_batch(mixed, packing=packing) < one + 6 * 50
    alone = [BatchLoader(each, 64, packing=packing) for each in mixed.sources]
    explained = BatchLoader(mixed, 64, packing=packing, fields=("inputs", "targets", "cu_seqlens"))
    batch, drawn = next(explained), explained.batches.drawn(0)
    for row, each in enumerate(drawn):
        source = alone[mixed.names.index(each.source)]
        assert np.array_equal(
            batch["inputs"][row], source.batches.tokens_of(replace(each, source=""))
        )
