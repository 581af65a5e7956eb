"""The index arrays of Megatron and Nanosets, compared with their rules in a plain loop."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sentences import refused

from fineshards.loader.mixing import blending
from fineshards.loader.mixing.blending import exhaustive, greedy, megatron_weights, nanoset


def plain(
    shares: list[float], size: int, lengths: list[int] | None = None
) -> tuple[list[int], list[int]]:
    """The rule, sample by sample.

    A source of `lengths` is left out when all its samples were drawn.
    """
    counts = [0] * len(shares)
    sources, numbers = [], []
    for sample in range(size):
        target = float(max(sample, 1))
        behind = [
            (share * target - counts[source], -source)
            for source, share in enumerate(shares)
            if lengths is None or counts[source] < lengths[source]
        ]
        source = -max(behind)[1]
        sources.append(source)
        numbers.append(counts[source])
        counts[source] += 1
    return sources, numbers


def divided(weights: list[float]) -> list[float]:
    return [weight / float(np.sum(weights)) for weight in weights]


def check(weights: list[float], size: int) -> None:
    shares = weights if abs(np.sum(weights) - 1) <= 1e-14 else divided(weights)
    sources, numbers = greedy(weights, size)
    expected = plain(shares, size)
    assert sources.tolist() == expected[0]
    assert numbers.tolist() == expected[1]


lists_of_weights = st.lists(
    st.sampled_from([0, 0.1, 0.2, 0.5, 1, 1e-9, 1 / 3]) | st.floats(1e-9, 1),
    min_size=1,
    max_size=10,
).filter(any)


@given(lists_of_weights, st.integers(0, 300))
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


def fills() -> list[Any]:
    """The loop for numba as it stands, and compiled where numba is installed."""
    compiled = blending._fastest_fill()
    return [blending._fill_in_loops] + [compiled] * (compiled is not blending._fill)


@pytest.mark.parametrize("fill", fills())
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 30])
def test_the_loops_for_numba_make_the_same_arrays(fill: Any, count: int) -> None:
    # Equal weights too, for the first of equals.
    for shares in (RANDOM.dirichlet(np.full(count, 0.3)), np.full(count, 1 / count)):
        for caps in (np.full(count, np.inf), RANDOM.integers(1, 9, count).astype(float)):
            size = int(min(caps.sum(), 2000))
            for kind in (np.int16, np.int32):
                arrays = [(np.empty(size, kind), np.empty(size, np.int64)) for _ in range(2)]
                fill(shares, caps, *arrays[0])
                blending._fill(shares, caps, *arrays[1])
                assert np.array_equal(arrays[0], arrays[1])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 6, 1000])
def test_equal_weights_are_a_round_robin(count: int, size: int) -> None:
    check([0.3] * count, size)


def test_each_target_of_megatron_is_that_of_the_row_before() -> None:
    weights = [0.6, 0.25, 0.15]
    # Worked out by hand. The second sample has the target of the first, and later ones lag.
    assert greedy(weights, 4)[0].tolist() == [0, 1, 2, 0]


@given(lists_of_weights)
def test_megatron_divides_the_weights_of_a_run_twice(weights: list[float]) -> None:
    # Its dataset builder does, and then its BlendedDataset.
    assert megatron_weights(weights) == divided(divided(weights))
    expected = plain(divided(divided(weights)), 200)
    assert greedy(megatron_weights(weights), 200)[0].tolist() == expected[0]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_exhaustive_is_the_rule_among_the_sources_that_have_samples_left(
    lengths: list[int],
) -> None:
    sources, numbers = exhaustive(lengths)
    shares = [length / float(sum(lengths)) for length in lengths]
    expected = plain(shares, sum(lengths), lengths)
    assert sources.tolist() == expected[0]
    assert numbers.tolist() == expected[1]
    assert np.bincount(sources).tolist() == lengths


def test_megatron_has_no_limit_of_16_bits_in_numbers() -> None:
    sources, numbers = greedy([0.9, 0.1], 50_000)
    assert numbers[sources == 0].tolist() == list(range(45_000))
    assert numbers[sources == 1].tolist() == list(range(5_000))


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


def test_the_code_of_nanotron_breaks_some_ties_of_its_documentation_differently() -> None:
    # The code divides by the sum, 0.9999999999999999.
    sources, numbers = nanoset(LENGTHS, 70, WEIGHTS)
    expected = plain(divided(WEIGHTS), 20)
    assert expected[0] != DATASET_INDEX
    wrapped = [number % LENGTHS[source] for source, number in zip(*expected, strict=True)]
    for found, index in ((sources, expected[0]), (numbers, wrapped)):
        shuffled = np.array(index)
        np.random.RandomState(1234).shuffle(shuffled)
        assert found.tolist() == [*shuffled, *shuffled, *shuffled, *shuffled][:70]


# The worked example of nanotron's docs/nanoset.md.
LENGTHS = [8, 2, 5, 5]
WEIGHTS = [0.1, 0.5, 0.3, 0.1]
DATASET_INDEX = [1, 2, 0, 1, 3, 1, 2, 1, 2, 1, 0, 1, 2, 1, 3, 1, 2, 1, 2, 1]


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
    expected = plain(divided([float(weight) for weight in weights or lengths]), epoch)
    wrapped = [number % lengths[source] for source, number in zip(*expected, strict=True)]
    for found, index in ((sources, expected[0]), (numbers, wrapped)):
        shuffled = np.array(index)
        np.random.RandomState(seed).shuffle(shuffled)
        concatenated = np.concatenate([shuffled] * (samples // epoch + 1))
        assert found.tolist() == concatenated[:samples].tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: greedy([], 5), "one number per source"),
        (lambda: greedy([[1.0]], 5), "one number per source"),
        (lambda: greedy([1, -1], 5), "numbers of at least 0"),
        (lambda: greedy([0, 0], 5), "at least one positive"),
        (lambda: greedy([1, float("nan")], 5), "numbers of at least 0"),
        (lambda: greedy([1, float("inf")], 5), "numbers of at least 0"),
        (lambda: greedy(None, 5), "one number per source"),
        (lambda: greedy(["a", "b"], 5), "one number per source"),
        (lambda: greedy([True, 1.0], 5), r"\[True, 1\.0\] cannot be blended"),
        (lambda: greedy(np.array([True]), 5), "cannot be blended"),
        (lambda: greedy([10**400], 5), "one number per source"),
        (lambda: greedy([-1.0] * 10_000, 5), r"-1\.0.* cannot be blended"),
        (lambda: greedy([1], True), "size is True"),
        (lambda: greedy([1], 10**18), "do not fit into memory"),
        (lambda: greedy([1], 5, 7), "lengths are 7"),
        (lambda: greedy([1], 5, [None]), "a length is None"),
        (lambda: exhaustive([]), "1 sources need 1 lengths"),
        (lambda: exhaustive([3, 0]), "a length is 0; give an integer of at least 1"),
        (lambda: exhaustive([2**62, 2**62]), "too large to be indexed"),
        (lambda: exhaustive([10**18]), "do not fit into memory"),
        (lambda: megatron_weights([0.0]), "cannot be blended"),
        (lambda: nanoset([3], 10**18), "do not fit into memory"),
        (lambda: nanoset([3], 5, seed=True), "seed is True"),
        (lambda: greedy([1], -5), "size is -5"),
        (lambda: greedy([1], 2.5), r"size is 2\.5"),
        (lambda: greedy([1, 1], 5, [3]), "2 sources need 2 lengths"),
        (lambda: greedy([1, 1], 5, [3, 0]), "a length is 0"),
        (lambda: nanoset([3, 0], 5, [1, 1]), "a length is 0"),
        (lambda: nanoset([3], 5, [1, 1]), "2 sources need 2 lengths"),
        (lambda: nanoset([3], -1), "samples is -1"),
        (lambda: nanoset([3], 5, seed=-1), "from 0 to 2"),
        (lambda: nanoset([3], 5, seed=2**32), "from 0 to 2"),
    ],
)
def test_mistakes_are_one_sentence(make: Any, words: str) -> None:
    assert re.search(words, refused(make))
