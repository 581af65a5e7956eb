"""`greedy` and `exhaustive` against the compiled helper of Megatron-LM itself, row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets import helpers_cpp
from megatron.core.datasets.utils import normalize

from fineshards.loader.mixing.blending import exhaustive, greedy, megatron_weights

RANDOM = np.random.default_rng(15)


def check(weights: list[float], size: int) -> None:
    sources, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
    helpers_cpp.build_blending_indices(
        sources, numbers, np.array(weights), len(weights), size, False
    )
    ours = greedy(weights, size)
    assert np.array_equal(ours[0], sources)
    assert np.array_equal(ours[1], numbers)
    assert ours[0].dtype == sources.dtype
    assert ours[1].dtype == numbers.dtype


def check_exhaustive(lengths: list[int]) -> None:
    sources, numbers = np.zeros(sum(lengths), np.int16), np.zeros(sum(lengths), np.int64)
    helpers_cpp.build_exhaustive_blending_indices(
        sources, numbers, np.array(lengths, np.int64), len(lengths)
    )
    ours = exhaustive(lengths)
    assert np.array_equal(ours[0], sources)
    assert np.array_equal(ours[1], numbers)


# Shares of few digits are equally far behind again and again; rounding decides between them.
weights_of_a_run = st.lists(
    st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 1, 2, 3, 10, 1e-6]) | st.floats(1e-6, 1),
    min_size=1,
    max_size=12,
)


# The first call compiles.
@settings(deadline=None)
@given(weights_of_a_run, st.integers(0, 500))
def test_rows_are_those_of_the_helper(weights: list[float], size: int) -> None:
    once = normalize(weights)
    check(once, size)
    # What its dataset builder and BlendedDataset pass on together.
    assert megatron_weights(weights) == normalize(once)
    check(megatron_weights(weights), size)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 10, 50, 500])
def test_long_arrays_are_those_of_the_helper(count: int) -> None:
    check(normalize(RANDOM.lognormal(0, 2, count)), 20_000)
    check([1 / count] * count, 20_000)
    check(normalize(range(1, count + 1)), 20_000)


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_exhaustive_rows_are_those_of_the_helper(lengths: list[int]) -> None:
    check_exhaustive(lengths)


def test_long_exhaustive_arrays_are_those_of_the_helper() -> None:
    for count in (2, 10, 60):
        check_exhaustive(RANDOM.integers(1, 30_000 // count, count).tolist())
