"""The arithmetic of a mixture: closed forms compared with drawing one by one, at any size."""

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_sources import one_by_one, pairs

from fineshards.loader.mixing.apportionment import (
    ENDLESS,
    MAX_DRAWS,
    UNIT,
    WEIGHT_SUM,
    Stretch,
    integer_weights,
    spread_phases,
)

DRAWS = 300

# Of all magnitudes, with equal weights and zeros among them.
weight_lists = st.lists(
    st.one_of(
        st.sampled_from([0, 1, 1, 3, 10]).map(Fraction),
        st.integers(-40, 0).map(lambda power: Fraction(2) ** power),
        st.floats(1e-9, 1).map(Fraction),
    ),
    min_size=1,
    max_size=12,
).filter(any)


def stretch_of(weights: list[Fraction], start: int = 0) -> Stretch:
    whole = integer_weights(weights)
    count = len(weights)
    phases = spread_phases(whole, [hash((start, at)) for at in range(count)], start)
    return Stretch(0, whole, phases, np.zeros(count, np.int64), np.full(count, ENDLESS))


@given(weight_lists, st.integers(0, 2**32))
def test_closed_forms_agree_with_drawing_one_by_one(weights: list[Fraction], start: int) -> None:
    stretch = stretch_of(weights, start)
    expected = list(islice(one_by_one(stretch), DRAWS))
    assert pairs(stretch.draws(0, DRAWS)) == expected
    counts = np.zeros(len(weights), np.int64)
    for draw, (source, number) in enumerate(expected[:60]):
        assert stretch.counts_at(draw).tolist() == counts.tolist()
        assert number == counts[source], "the first draws are a prefix of each source"
        assert stretch.position(source, number) == draw
        counts[source] += 1


@given(weight_lists, st.data())
def test_any_range_of_draws_is_that_slice_of_all(
    weights: list[Fraction], data: st.DataObject
) -> None:
    stretch = stretch_of(weights)
    every = pairs(stretch.draws(0, DRAWS))
    start = data.draw(st.integers(0, DRAWS))
    stop = data.draw(st.integers(start, DRAWS))
    assert pairs(stretch.draws(start, stop)) == every[start:stop]


@given(weight_lists, st.data())
def test_a_stretch_that_follows_with_the_same_weights_changes_no_draw(
    weights: list[Fraction], data: st.DataObject
) -> None:
    stretch = stretch_of(weights)
    every = pairs(stretch.draws(0, DRAWS))
    at = 0
    for _ in range(3):
        at = data.draw(st.integers(at, DRAWS))
        stretch = stretch.follow(at)
        assert pairs(stretch.draws(at, DRAWS)) == every[at:]


def deviations(stretch: Stretch, draws: int) -> np.ndarray:
    """|count - weight * draws| after each draw, one column per source."""
    sources, _ = stretch.draws(stretch.first, stretch.first + draws)
    counts = np.cumsum(sources[:, None] == np.arange(len(stretch.weights)), axis=0)
    shares = stretch.weights / WEIGHT_SUM
    return np.abs(counts - shares * np.arange(1, draws + 1)[:, None])


@given(weight_lists, st.integers(0, 2**32))
def test_the_deviation_stays_below_the_bound_of_spread_phases(
    weights: list[Fraction], start: int
) -> None:
    stretch = stretch_of(weights, start)
    shares = stretch.weights / WEIGHT_SUM
    bound = 1 + shares * (len(weights) / 2 - 1) + 2**-9
    assert (deviations(stretch, DRAWS) < bound).all()


@given(weight_lists, st.data())
def test_the_deviation_stays_below_the_bound_of_any_phases(
    weights: list[Fraction], data: st.DataObject
) -> None:
    whole = integer_weights(weights)
    count = len(weights)
    phase = st.integers(0, UNIT - 1) | st.sampled_from([0, UNIT - 1])
    phases = np.array(data.draw(st.lists(phase, min_size=count, max_size=count)), np.int64)
    stretch = Stretch(0, whole, phases, np.zeros(count, np.int64), np.full(count, ENDLESS))
    bound = (1 + whole / WEIGHT_SUM * (count - 2)) * (1 + 2**-10)
    # A single source, or one with all the weight, does not deviate at all.
    assert (deviations(stretch, DRAWS) <= np.maximum(bound, 0)).all()


@pytest.mark.parametrize("count", [100, 1000])
def test_many_equal_sources_are_nearly_a_round_robin(count: int) -> None:
    # Far below the bound: sources of equal weight have evenly spread phases.
    equal = stretch_of([Fraction(1)] * count, start=3)
    assert deviations(equal, 3 * count).max() <= 1
    beside_a_large_one = stretch_of([Fraction(count)] + [Fraction(1)] * count, start=4)
    assert deviations(beside_a_large_one, 3 * count).max() < 3


@pytest.mark.parametrize("first", [2**31 - 50, 2**32 - 50, 2**40 - 50, MAX_DRAWS - 100])
@pytest.mark.parametrize(
    "weights", [["0.7", "0.3"], ["0.999999999", "1e-9"], ["1"], ["1e-9"] * 3 + ["1"] * 40]
)
def test_draws_far_out_are_exact(first: int, weights: list[str]) -> None:
    stretch = stretch_of([Fraction(weight) for weight in weights])
    counts = stretch.counts_at(first)
    assert counts.sum() == first
    # Floats would be off by hundreds.
    shares = stretch.weights.tolist()
    bound = 1 + len(shares) / 2 + 2**-9
    for share, count in zip(shares, counts.tolist(), strict=True):
        assert abs(count - Fraction(share, WEIGHT_SUM) * first) < bound
    draws = pairs(stretch.draws(first, first + 100))
    for draw, (source, number) in enumerate(draws, first):
        assert number == counts[source]
        counts[source] += 1
        assert stretch.position(source, number) == draw
    order = [(stretch.tick(source, number), source) for source, number in draws]
    assert order == sorted(order)


@given(weight_lists)
def test_integer_weights_are_the_nearest_ones(weights: list[Fraction]) -> None:
    whole = integer_weights(weights).tolist()
    assert sum(whole) == WEIGHT_SUM
    total = sum(weights)
    for weight, share in zip(weights, whole, strict=True):
        assert (share > 0) == (weight > 0)
        assert abs(share - weight / total * WEIGHT_SUM) < 1 + len(weights)


def test_no_positive_weight_is_lost() -> None:
    tiny = Fraction(1, 10**30)
    assert integer_weights([tiny, Fraction(1), Fraction(0), tiny]).tolist() == [
        1,
        WEIGHT_SUM - 2,
        0,
        1,
    ]


@given(weight_lists, st.integers(0, 2**64))
def test_phases_are_all_the_fractions_exactly_once(weights: list[Fraction], start: int) -> None:
    whole = integer_weights(weights)
    count = len(weights)
    phases = spread_phases(whole, list(range(count)), start)
    assert sorted(phases.tolist()) == [(2 * at + 1) * UNIT // (2 * count) for at in range(count)]
