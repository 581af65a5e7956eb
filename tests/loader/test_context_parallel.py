"""Context parallelism: the parts of a batch, against the published rules, one token at a time."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset, uneven
from fineshards import BatchLoader, ContextParallel, Packing, TokenDataset
from fineshards.storage.open import open_storage

LENGTH = 64
FIELDS = (
    *("inputs", "targets", "position_ids", "document_ids", "loss_mask"),
    *("cu_seqlens", "max_seqlen", "sample_ids"),
)


def padded(lengths: list[int], multiple: int) -> list[int]:
    """Cumulative lengths of documents that are padded to a multiple."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + -(-length // multiple) * multiple)
    return ends


def transformer_engine(ends: list[int], size: int, rank: int) -> list[int]:
    """Its thd_partition_indices_kernel: the tokens of a rank, for padded cumulative lengths."""
    local, found = [end // size for end in ends], []
    for token in range(local[-1]):
        document = max(number for number, begin in enumerate(local[:-1]) if begin <= token)
        length, index = local[document + 1] - local[document], token - local[document]
        offset = rank if index < length // 2 else (size - 1) * 2 - rank
        found.append(index + local[document] * size + length // 2 * offset)
    return found


def llama3(ends: list[int], size: int, rank: int) -> tuple[list[int], list[int], int]:
    """llama3_flash_attn_prepare_cu_seqlens of ring-flash-attention, causal.

    Cumulative lengths of the queries and of their keys, and where these begin.
    """
    begin, end = rank * ends[-1] // size, (rank + 1) * ends[-1] // size
    left = sum(each < begin for each in ends)
    right = sum(each < end for each in ends)
    left -= ends[left] != begin
    queries = [0, *(each - begin for each in ends[left + 1 : right]), end - begin]
    keys = [each - ends[left] for each in (*ends[left:right], end)]
    return queries, keys, ends[left]


@st.composite
def rows(draw: Callable[..., Any]) -> np.ndarray:
    """Where documents begin, shape (n, T); T is a multiple of 4."""
    shape = draw(st.integers(1, 3)), 4 * draw(st.integers(1, 5))
    bits = draw(st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    begins = np.array(bits).reshape(shape)
    begins[:, 0] = True
    return begins


@given(rows(), st.integers(1, 5))
def test_zigzag_parts_are_those_of_transformer_engine(begins: np.ndarray, size: int) -> None:
    starts = np.flatnonzero(begins).tolist()
    lengths = [end - begin for begin, end in pairwise([*starts, begins.size])]
    ends = padded(lengths, 2 * size)
    # Each padded token: its place in the rows, its position, and whether it is padding.
    tokens = [
        (begin + min(position, length - 1), position, position >= length)
        for begin, length, (first, last) in zip(starts, lengths, pairwise(ends), strict=True)
        for position in range(last - first)
    ]
    seen = []
    for rank in range(size):
        part = ContextParallel(rank, size).part(begins)
        expected = [tokens[index] for index in transformer_engine(ends, size, rank)]
        found = zip(part.places, part.position_ids, part.padding, strict=True)
        assert list(found) == expected
        assert (part.cu_seqlens * size).tolist() == ends
        seen += part.places[~part.padding].tolist()
    assert sorted(seen) == list(range(begins.size))


@given(rows(), st.sampled_from([1, 2, 4]))
def test_contiguous_parts_are_those_of_ring_flash_attention(begins: np.ndarray, size: int) -> None:
    ends = [*np.flatnonzero(begins).tolist(), begins.size]
    seen = []
    for rank in range(size):
        part = ContextParallel(rank, size, "contiguous").part(begins)
        queries, keys, first = llama3(ends, size, rank)
        assert part.cu_seqlens.tolist() == queries
        # As docs/loader.md says where the keys of a part begin and end.
        before = int(part.position_ids[0])
        assert part.places[0] - before == first
        assert [0, *(part.cu_seqlens[1:] + before).tolist()] == keys
        assert not part.padding.any()
        seen += part.places.tolist()
        begin = max(each for each in ends if each <= part.places[0])
        assert part.position_ids[0] == part.places[0] - begin
    assert seen == list(range(begins.size))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    folder, tokens = tmp_path_factory.mktemp("context"), 69 * LENGTH + 20
    make_dataset(open_storage(str(folder)), tokens, shard_tokens=1000, made=uneven(tokens, 30))
    return TokenDataset(folder, sequence_length=LENGTH)


@pytest.mark.parametrize("packing", [None, Packing(rows=8, shuffle_windows=3)])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_parts_of_a_batch_are_the_batch(
    dataset: TokenDataset, packing: Packing | None, layout: Any, size: int
) -> None:
    def loader(**more: Any) -> BatchLoader:
        given = {"packing": packing, "rank": 1, "world_size": 2, "dtype": "int64"}
        return BatchLoader(
            dataset, 8, 3, fields=FIELDS, ignore_index=-100, epochs=1, **given | more
        )

    lengths = {0: 16, 3: LENGTH}
    parts = [
        loader(context_parallel=ContextParallel(rank, size, layout), sequence_length=lengths)
        for rank in range(size)
    ]
    for whole, *found in zip(loader(sequence_length=lengths), *parts, strict=True):
        flat = {name: whole[name].reshape(-1) for name in FIELDS[:5]}
        kept = []
        for rank, batch in enumerate(found):
            part = ContextParallel(rank, size, layout).part(whole["position_ids"] == 0)
            real = ~part.padding
            for name in ("inputs", "document_ids"):
                assert np.array_equal(batch[name], flat[name][part.places])
            for name in ("targets", "loss_mask", "position_ids"):
                assert np.array_equal(batch[name][real], flat[name][part.places][real])
            assert (batch["targets"][part.padding] == -100).all()
            assert not batch["loss_mask"][part.padding].any()
            assert np.array_equal(batch["position_ids"], part.position_ids)
            assert batch["cu_seqlens"][-1] == len(batch["inputs"])
            assert batch["max_seqlen"] == np.diff(batch["cu_seqlens"]).max()
            assert np.array_equal(batch["sample_ids"], whole["sample_ids"])
            kept.append(part.places[real])
        assert np.array_equal(np.sort(np.concatenate(kept)), np.arange(flat["inputs"].size))
    assert len({str(part.state_dict()) for part in parts}) == 1


def test_what_cannot_be_divided_is_refused(dataset: TokenDataset) -> None:
    def loader(part: Any, *fields: str, **more: Any) -> Callable[[], object]:
        names = fields or None
        return lambda: BatchLoader(
            dataset, 8, context_parallel=part, fields=names, dtype="int64", **more
        )

    part = ContextParallel(0, 2)
    assert "padding must not count" in refused(loader(part, "inputs", "targets"))
    assert "labels that a model can shift" in refused(loader(part, "labels", ignore_index=-1))
    assert "needs fields" in refused(loader(part))
    assert "give ContextParallel" in refused(loader((0, 2), "inputs"))
    assert "cannot be divided by the 3" in refused(
        loader(ContextParallel(0, 3, "contiguous"), "inputs")
    )
    assert "rank is 2" in refused(lambda: ContextParallel(2, 2))
    assert "layout is 'ring'" in refused(lambda: ContextParallel(0, 2, "ring"))  # type: ignore[arg-type]
