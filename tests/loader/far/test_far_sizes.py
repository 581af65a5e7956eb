"""Sizes of requests and cache for an order, and warnings where the user's cannot work."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.made_up_dataset import make_dataset
from fineshards.errors import UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.far.sizes import ReadingOrder, sizes_for
from fineshards.loader.token_dataset import TokenDataset
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.shards.layout import Layout, SplitRule
from fineshards.storage.local import LocalStorage
from fineshards.storage.open import open_storage

GIB = 1 << 30
SAMPLE_BYTES = 4 * 2049


def split(shards: int, shard_tokens: int) -> SplitShards:
    tokens = shards * shard_tokens
    return SplitShards(
        storage=LocalStorage("/nowhere"),
        name="train",
        generation=1,
        fingerprint="f",
        layout=Layout.plan([tokens], shard_tokens, SplitRule(None, 0)),
        tokens=tokens,
        dtype=np.dtype("<u4"),
        eot=0,
        vocabulary_size=2,
    )


@given(
    shards=st.integers(1, 2000),
    shard_tokens=st.integers(1, 200_000_000),
    order=st.none() | st.builds(ReadingOrder, st.booleans(), st.none() | st.integers(1, 3000)),
    read_bytes=st.none() | st.integers(1, GIB),
    cache_bytes=st.none() | st.integers(1, 100 * GIB),
    memory=st.integers(GIB, 4096 * GIB),
)
def test_sizes_work_or_warn(
    shards: int,
    shard_tokens: int,
    order: ReadingOrder | None,
    read_bytes: int | None,
    cache_bytes: int | None,
    memory: int,
) -> None:
    there = split(shards, shard_tokens)
    sizes, warning = sizes_for(there, SAMPLE_BYTES, order, read_bytes, cache_bytes, memory)
    block = sizes.read_bytes
    if read_bytes is not None:
        assert block is not None
        assert block % 128 == 0
        assert 0 <= block - read_bytes < 128
    if cache_bytes is not None:
        assert sizes.cache_bytes in (cache_bytes, block)
    elif order is None or not order.shuffle or order.shuffle_shards is None:
        assert sizes.cache_bytes <= max(128 << 20, block or 0)
    else:
        assert sizes.cache_bytes <= max(memory // 16, 128 << 20, block or 0)
    if order is None or not order.shuffle:
        assert block is not None
        assert sizes.cache_bytes >= block * (1 + sizes.ahead)
        assert not warning
        return
    together = min(order.shuffle_shards or shards, shards)
    holds_all_in_use = sizes.cache_bytes >= together * there.file_bytes(0)
    if block is None:
        assert bool(warning) == (together < shards)
    elif not warning:
        assert holds_all_in_use or block <= 4 * SAMPLE_BYTES
    else:
        assert block > 4 * SAMPLE_BYTES
        assert f"read_bytes={read_bytes:,}" in warning


@pytest.mark.parametrize("together", [1, 8])
def test_the_cache_that_a_warning_names_is_enough(together: int) -> None:
    there, order = split(100, 100_000_000), ReadingOrder(True, together)
    sizes, warning = sizes_for(there, SAMPLE_BYTES, order, cache_bytes=GIB // 4)
    assert sizes.read_bytes is None
    needed = int(warning.partition("cache_bytes=")[2].partition(",")[0])
    sizes, warning = sizes_for(there, SAMPLE_BYTES, order, cache_bytes=needed)
    assert (sizes.read_bytes, warning) == (8 << 20, "")
    assert together * there.file_bytes(0) <= needed < (together + 1) * there.file_bytes(0)


def test_a_cache_folder_that_is_too_small_is_warned_of_where_the_loader_is_made(
    tmp_path: Path,
) -> None:
    make_dataset(open_storage(str(tmp_path / "set")), 10_000, 1000)

    def dataset(shards: int) -> TokenDataset:
        return TokenDataset(
            tmp_path / "set",
            sequence_length=100,
            cache_folder=tmp_path / "cache",
            cache_folder_bytes=shards * 4128,
        )

    with pytest.warns(UserWarning, match=r"cache_folder_bytes=12384 or more") as caught:
        BatchLoader(dataset(2), 4, shuffle_shards=2)
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    with pytest.warns(UserWarning, match="cache_folder_bytes=41280 or more"):
        BatchLoader(dataset(9), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchLoader(dataset(3), 4, shuffle_shards=2)
        BatchLoader(dataset(2), 4, shuffle=False)
        BatchLoader(dataset(10), 4)


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    make_dataset(open_storage(str(tmp_path / "set")), 10_000, 1000)
    for options, said in [
        ({"cache_folder": tmp_path / "c", "cache_folder_bytes": 4127}, "one shard has 4,128"),
        ({"cache_folder_bytes": 5000}, "cache_folder is not"),
        ({"cache_folder": ""}, "give a folder"),
        ({"cache_folder": tmp_path / "c", "cache_folder_bytes": 0}, "at least 1"),
        ({"read_bytes": 0}, "at least 1"),
        ({"cache_bytes": True}, "give an integer"),
    ]:
        with pytest.raises(UsageError, match=said):
            TokenDataset(tmp_path / "set", sequence_length=10, **options)  # type: ignore[arg-type]
