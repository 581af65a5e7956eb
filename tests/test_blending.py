"""The index arrays of Megatron and Nanosets, compared with their rules in a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.errors import UsageError
from fineshards.loader import blending
from fineshards.loader.blending import greedy, nanoset


def plain(weights: list[float], size: int, first_target: int = 1) -> tuple[list[int], list[int]]:
    """The rule, sample by sample. Megatron and Nanosets use 0 as `first_target`."""
    total = np.sum(weights)
    shares = [float(weight if abs(total - 1) <= 1e-14 else weight / total) for weight in weights]
    counts = [0] * len(weights)
    sources, numbers = [], []
    for sample in range(size):
        target = max(sample + first_target, 1)
        behind = [share * target - count for share, count in zip(shares, counts, strict=True)]
        source = behind.index(max(behind))
        sources.append(source)
        numbers.append(counts[source])
        counts[source] += 1
    return sources, numbers


def check(weights: list[float], size: int) -> None:
    sources, numbers = greedy(weights, size)
    expected = plain(weights, size)
    assert sources.tolist() == expected[0]
    assert numbers.tolist() == expected[1]


@given(
    st.lists(
        st.sampled_from([0, 0.1, 0.2, 0.5, 1, 1e-9, 1 / 3]) | st.floats(1e-9, 1),
        min_size=1,
        max_size=10,
    ).filter(any),
    st.integers(0, 300),
)
def test_greedy_is_the_rule_on_short_indices(weights: list[float], size: int) -> None:
    check(weights, size)


RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize(
    "weights",
    [
        [0.1, 0.5, 0.3, 0.1],
        [1 / number for number in range(1, 11)],
        [0.999, 0.001],
        [1e-9, 1, 1],
        [0, 0, 3, 1],
        [0.1] * 9 + [0.2],
        [2.0**-number for number in range(20)],
        RANDOM.random(10).tolist(),
        RANDOM.lognormal(0, 3, 60).tolist(),
        RANDOM.lognormal(0, 1, 300).tolist(),
    ],
)
def test_greedy_is_the_rule_on_long_indices(weights: list[float]) -> None:
    # Ties, near and exact, are broken as in the plain loop.
    check(weights, 5_021)


@pytest.mark.parametrize("first_target", [0, 1])
def test_compiled_code_makes_the_same_arrays(first_target: int) -> None:
    numba = pytest.importorskip("numba")
    fill = blending._fastest_fill()
    assert isinstance(fill, numba.core.dispatcher.Dispatcher)
    for kind in (np.int16, np.int32):
        for count in (1, 2, 30):
            shares = RANDOM.dirichlet(np.full(count, 0.3))
            arrays = [(np.empty(20_000, kind), np.empty(20_000, np.int64)) for _ in range(2)]
            fill(shares, first_target, *arrays[0])
            blending._fill(shares, first_target, *arrays[1])
            assert np.array_equal(arrays[0], arrays[1])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 6, 1000])
def test_equal_weights_are_a_round_robin(count: int, size: int) -> None:
    check([0.3] * count, size)


def test_only_the_first_rows_of_megatron_are_corrected() -> None:
    weights = [0.6, 0.25, 0.15]
    ours, _ = greedy(weights, 1001)
    theirs, _ = plain(weights, 1001, first_target=0)
    # Worked out by hand. Their second sample has the target of the first, and later ones lag.
    assert theirs[:4] == [0, 1, 2, 0]
    assert ours[:4].tolist() == [0, 1, 0, 2]
    assert np.abs(np.bincount(ours) - np.bincount(theirs)).max() <= 1


def test_more_sources_than_16_bits_can_name() -> None:
    weights = np.ones(40_000)
    weights[-1] = 2
    sources, numbers = greedy(weights.tolist(), 3)
    assert sources[0] == 39_999
    assert sources.dtype == np.int32
    assert numbers.dtype == np.int64
    assert greedy([1, 2], 3)[0].dtype == np.int16
    in_turn, _ = greedy(np.ones(40_000).tolist(), 3)
    assert in_turn.tolist() == [0, 1, 2]


def test_every_index_is_within_its_dataset() -> None:
    lengths = [10, 3, 500]
    sources, numbers = greedy([0.2, 0.5, 0.3], 1000, lengths)
    unwrapped = greedy([0.2, 0.5, 0.3], 1000)[1]
    assert (numbers < np.array(lengths)[sources]).all()
    assert numbers.tolist() == (unwrapped % np.array(lengths)[sources]).tolist()


def test_nanoset_with_the_quotients_reproduces_the_code_of_nanotron() -> None:
    # The code divides by the sum, 0.9999999999999999, which breaks some ties differently.
    shares = np.array(WEIGHTS) / np.sum(WEIGHTS)
    sources, _ = nanoset(LENGTHS, 20, shares.tolist())
    expected = np.array(plain(shares.tolist(), 20, first_target=0)[0])
    assert expected.tolist() != DATASET_INDEX
    assert sources.tolist() == expected[np.random.RandomState(1234).permutation(20)].tolist()


# The worked example of nanotron's docs/nanoset.md.
LENGTHS = [8, 2, 5, 5]
WEIGHTS = [0.1, 0.5, 0.3, 0.1]
DATASET_INDEX = [1, 2, 0, 1, 3, 1, 2, 1, 2, 1, 0, 1, 2, 1, 3, 1, 2, 1, 2, 1]
SAMPLE_INDEX = [0, 0, 0, 1, 0, 0, 1, 1, 2, 0, 1, 1, 3, 0, 1, 1, 4, 0, 0, 1]


def test_nanoset_reproduces_the_worked_example() -> None:
    sources, numbers = nanoset(LENGTHS, 70, WEIGHTS, seed=1234)
    # As in nanotron, both are shuffled in place by two equal generators.
    for found, index in ((sources, DATASET_INDEX), (numbers, SAMPLE_INDEX)):
        shuffled = np.array(index)
        np.random.RandomState(1234).shuffle(shuffled)
        assert found.tolist() == [*shuffled, *shuffled, *shuffled, *shuffled][:70]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_nanoset_is_the_rule_shuffled_and_repeated(
    lengths: list[int], samples: int, seed: int, by_length: bool
) -> None:
    weights = None if by_length else list(range(1, len(lengths) + 1))
    sources, numbers = nanoset(lengths, samples, weights, seed)
    epoch = sum(lengths)
    expected = plain([float(weight) for weight in weights or lengths], epoch, first_target=0)
    wrapped = [number % lengths[source] for source, number in zip(*expected, strict=True)]
    for found, index in ((sources, expected[0]), (numbers, wrapped)):
        shuffled = np.array(index)
        np.random.RandomState(seed).shuffle(shuffled)
        concatenated = np.concatenate([shuffled] * (samples // epoch + 1))
        assert found.tolist() == concatenated[:samples].tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: greedy([], 5), "one per source"),
        (lambda: greedy([[1.0]], 5), "one per source"),
        (lambda: greedy([1, -1], 5), "numbers of at least 0"),
        (lambda: greedy([0, 0], 5), "at least one positive"),
        (lambda: greedy([1, float("nan")], 5), "numbers of at least 0"),
        (lambda: greedy([1, float("inf")], 5), "numbers of at least 0"),
        (lambda: greedy([1], -5), "size is -5"),
        (lambda: greedy([1], 2.5), r"size is 2\.5"),
        (lambda: greedy([1, 1], 5, [3]), "2 sources need 2 lengths"),
        (lambda: greedy([1, 1], 5, [3, 0]), "lengths of at least 1"),
        (lambda: nanoset([3, 0], 5, [1, 1]), "lengths of at least 1"),
        (lambda: nanoset([3], 5, [1, 1]), "2 sources need 2 lengths"),
        (lambda: nanoset([3], -1), "samples is -1"),
        (lambda: nanoset([3], 5, seed=-1), "from 0 to 2"),
        (lambda: nanoset([3], 5, seed=2**32), "from 0 to 2"),
    ],
)
def test_mistakes_are_one_sentence(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
