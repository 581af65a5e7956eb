"""Mixtures whose weights change along a schedule."""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from support.made_up_sources import is_a_prefix_of_each, mixture, pairs
from support.sentences import refused

from fineshards import linear_schedule
from fineshards.errors import UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.mixture import Mixture


def test_weights_may_be_changed_where_a_run_is_resumed() -> None:
    before, after = {"a": 1, "b": 2}, {"a": 5, "b": 1}
    plain = mixture([1, 2])
    with BatchLoader(plain, 4, seed=3) as loader:
        first = [next(loader) for _ in range(5)]
        state = loader.state_dict()
    changed = mixture([1, 2], schedule={20: after}, exhausted="repeat")
    with BatchLoader(changed, 4, seed=3) as loader:
        whole = [next(loader) for _ in range(15)]
        loader.load_state_dict(state)
        assert np.array_equal([next(loader) for _ in range(10)], whole[5:])
        later = loader.state_dict()
    assert np.array_equal(first, whole[:5])
    # Past draws cannot be changed.
    for other in (plain, mixture([1, 2], schedule={19: after}), mixture([5, 1])):
        with pytest.raises(UsageError, match="fingerprint"):
            BatchLoader(other, 4, seed=3).load_state_dict(later)
    again = mixture([1, 2], schedule={20: after, 60: before})
    BatchLoader(again, 4, seed=3).load_state_dict(later)
    with pytest.raises(UsageError, match="fingerprint"):
        BatchLoader(mixture([1, 2], schedule={19: after}), 4, seed=3).load_state_dict(state)


def test_a_small_source_gets_its_share_under_a_schedule_that_changes_often() -> None:
    # Its share of each stretch is 0.01 of a draw.
    schedule = {10 * step: {"a": 0.9 + step % 2, "b": 0.001} for step in range(1, 2000)}
    mix = mixture([0.9, 0.001], schedule=schedule)
    expected = sum(10 * 0.001 / (0.901 + step % 2) for step in range(2000))
    assert abs(mix.counts(20_000)["b"] - expected) < 2


def long_schedule() -> dict[int, dict[str, float]]:
    random = np.random.default_rng(8)
    return {
        7 * at: dict(zip("abc", random.random(3).tolist(), strict=True)) for at in range(1, 2001)
    }


def test_draws_far_along_a_schedule_are_those_of_going_there_step_by_step() -> None:
    schedule = long_schedule()
    slow = mixture([1, 1, 1], schedule=schedule)
    every = [pair for at in range(0, 14_100, 50) for pair in pairs(slow.draws(at, at + 50))]
    assert is_a_prefix_of_each(every)
    for at in (13_999, 14_050, 6_543, 0, 7_001):
        mix = mixture([1, 1, 1], schedule=schedule)
        assert pairs(mix.draws(at, at + 50)) == every[at : at + 50]
        counts = Counter(source for source, _ in every[:at])
        assert list(mix.counts(at).values()) == [counts[source] for source in range(3)]
        source, number = every[at]
        assert mix.position(source, number) == at
        assert pickle.loads(pickle.dumps(mix))[at] == ("abc"[source], number)


def test_threads_share_a_mixture_whose_schedule_is_laid_out_while_they_read() -> None:
    schedule = long_schedule()
    expected = mixture([1, 1, 1], schedule=schedule).draws(0, 14_000)
    for _ in range(3):
        mix = mixture([1, 1, 1], schedule=schedule)

        def read(at: int, mix: Mixture = mix) -> bool:
            sources, numbers = mix.draws(at, at + 100)
            return bool(
                (sources == expected[0][at : at + 100]).all()
                and (numbers == expected[1][at : at + 100]).all()
            )

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, [*range(0, 13_900, 700)] * 2))


@pytest.mark.parametrize("changes", [1, 7, 100])
def test_a_linear_schedule_follows_the_line(changes: int) -> None:
    start, stop = 1000, 5003
    first, last = {"a": 6, "b": 2, "c": 0}, {"a": 0.25, "b": 0.25, "c": 0.5}
    schedule = linear_schedule(start, stop, first, last, changes)
    mix = mixture(list(first.values()), schedule=schedule)
    shares = [
        (Fraction(6, 8), Fraction(1, 4)),
        (Fraction(1, 4), Fraction(1, 4)),
        (0, Fraction(1, 2)),
    ]
    for draws in (0, 900, 1000, *schedule, 6000):
        for (before, after), count in zip(shares, mix.counts(draws).values(), strict=True):
            # The line's area, in closed form.
            along = Fraction(min(max(draws - start, 0), stop - start))
            slope = Fraction(after - before) / (stop - start)
            area = before * min(draws, stop) + slope * along**2 / 2 + after * max(draws - stop, 0)
            # Parts begin at whole draws, and a source's draws are whole.
            assert abs(count - area) < 4
    assert (list(schedule)[-1], len(schedule)) == (stop, changes + 1)


def test_a_line_that_cannot_be_cut_is_refused() -> None:
    weights = {"a": 1, "b": 1}
    assert "stop is 10" in refused(lambda: linear_schedule(5, 10, weights, weights, 6))
    assert "no weight for 'b'" in refused(lambda: linear_schedule(5, 10, weights, {"a": 1}, 2))
