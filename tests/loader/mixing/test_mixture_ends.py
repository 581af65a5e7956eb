"""Mixtures whose sources end: they repeat, the mixture stops, or they are dropped."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_sources import is_a_prefix_of_each, mixture, pairs

from fineshards.loader.batch_loader import BatchLoader

ends = st.lists(
    st.tuples(st.sampled_from([1e-9, 0.001, 0.3, 1, 5]), st.integers(1, 60)),
    min_size=1,
    max_size=6,
)


@given(ends, st.integers(0, 3))
def test_stop_ends_before_the_first_repeated_sample(
    sources: list[tuple[float, int]], seed: int
) -> None:
    weights, lengths = map(list, zip(*sources, strict=True))
    mix = mixture(weights, lengths, seed=seed, exhausted="stop")
    every = pairs(mixture(weights, lengths, seed=seed).draws(0, len(mix) + 1))
    assert pairs(mix.draws(0, len(mix))) == every[:-1]
    assert all(number < lengths[source] for source, number in every[:-1])
    source, number = every[-1]
    assert number == lengths[source]


@given(ends, st.integers(0, 3))
def test_drop_draws_every_sample_once_and_keeps_the_proportions(
    sources: list[tuple[float, int]], seed: int
) -> None:
    weights, lengths = map(list, zip(*sources, strict=True))
    mix = mixture(weights, lengths, seed=seed, exhausted="drop")
    assert len(mix) == sum(lengths)
    every = pairs(mix.draws(0, len(mix)))
    assert is_a_prefix_of_each(every)
    assert Counter(source for source, _ in every) == dict(enumerate(lengths))
    for at in range(0, len(mix), 7):
        assert pairs(mix.draws(at, at + 1)) == every[at : at + 1]
    # Between the last draws of two sources, the others follow their weights.
    last = [
        max(at for at, (each, _) in enumerate(every) if each == source) + 1
        for source in range(len(lengths))
    ]
    for start, stop in pairwise([0, *sorted(last)]):
        left = [source for source in range(len(lengths)) if last[source] > start]
        total = sum(weights[source] for source in left)
        drawn = Counter(source for source, _ in every[start:stop])
        for source in left:
            share = weights[source] / total
            assert abs(drawn[source] - share * (stop - start)) < 1.01 + share * len(left)


def test_a_tiny_source_is_drawn_to_its_end_when_all_others_are_dropped() -> None:
    mix = mixture([1, 1e-9, 1e-12], [1000, 10**9, 50], exhausted="drop")
    assert len(mix) == 10**9 + 1050
    counts = mix.counts(10**9 + 1000)
    assert counts["a"] == 1000
    assert abs(counts["c"] - 50) <= 50
    assert mix.counts(len(mix)) == {"a": 1000, "b": 10**9, "c": 50}
    with pytest.raises(IndexError):
        mix[len(mix)]


schedules = st.dictionaries(
    st.integers(1, 100),
    st.lists(st.sampled_from([0, 1, 7]), min_size=3, max_size=3).filter(any),
    min_size=1,
    max_size=3,
)


@given(schedules, st.lists(st.integers(1, 60), min_size=3, max_size=3))
def test_sources_end_correctly_under_a_schedule(
    schedule: dict[int, list[int]], lengths: list[int]
) -> None:
    changes = {at: dict(zip("abc", weights, strict=True)) for at, weights in schedule.items()}
    endless = pairs(mixture([5, 1, 1], lengths, schedule=changes).draws(0, 500))
    repeats = [at for at, (source, number) in enumerate(endless) if number == lengths[source]]
    stopped = mixture([5, 1, 1], lengths, schedule=changes, exhausted="stop")
    assert stopped.length == (repeats[0] if repeats else None)

    dropped = mixture([5, 1, 1], lengths, schedule=changes, exhausted="drop")
    end = 500 if dropped.length is None else dropped.length
    every = pairs(dropped.draws(0, end))
    assert is_a_prefix_of_each(every)
    assert all(number < lengths[source] for source, number in every)
    # Up to the first end both are equal. The counts are right everywhere.
    assert every[: repeats[0]] == endless[: repeats[0]]
    for draws in range(0, end, 11):
        counts = Counter(source for source, _ in every[:draws])
        assert list(dropped.counts(draws).values()) == [counts[source] for source in range(3)]
    # It ends when every source with a weight at that time is exhausted.
    weights = dict(sorted({0: [5, 1, 1], **schedule}.items()))
    current = [each for at, each in weights.items() if at <= end][-1]
    counts = Counter(source for source, _ in every)
    assert all(counts[source] == lengths[source] for source in range(3) if current[source])


def test_dropped_sources_stay_dropped_when_weights_change() -> None:
    mix = mixture([1, 1], [10, 1000], exhausted="drop", schedule={50: {"a": 1, "b": 1}})
    assert len(mix) == 1010
    assert is_a_prefix_of_each(pairs(mix.draws(0, 1010)))


def test_a_mixture_ends_when_only_sources_of_weight_zero_are_left() -> None:
    assert len(mixture([1, 0], [10, 1000], exhausted="drop")) == 10


def test_repeat_shuffles_every_epoch_differently() -> None:
    mix = mixture([0.9, 0.1], [10_000, 20])
    rows = np.concatenate(
        [batch for _, batch in zip(range(60), BatchLoader(mix, 10), strict=False)]
    )
    assert (rows[:, 0] == 1).sum() == 60
    epochs = rows[rows[:, 0] == 1][:, 1].reshape(3, 20).tolist()
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    large = rows[rows[:, 0] == 0][:, 1].tolist()
    assert len(set(large)) == 540
