"""Sources that join a mixture where a run is resumed: nothing before them changes."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_sources import MadeUp, mixture, pairs

from fineshards.errors import UsageError
from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.mixture import Mixture


def test_a_source_that_joins_later_starts_at_its_first_sample() -> None:
    mix = mixture([1, 0], schedule={100: {"a": 1, "b": 1}, 200: {"a": 0, "b": 1}})
    every = pairs(mix.draws(0, 300))
    assert every[:100] == [(0, number) for number in range(100)]
    assert [pair for pair in every if pair[0] == 1] == [(1, number) for number in range(150)]
    assert every[200:] == [(1, number) for number in range(50, 150)]


def extended(
    base: dict[str, tuple[MadeUp, float]],
    changes: dict[int, list[float]],
    joining: dict[str, int],
    data: st.DataObject,
    **options: Any,
) -> tuple[Mixture, Mixture, dict[int, dict[str, float]]]:
    """A mixture, the same with sources that join later, and the weights of that.

    The new ones are at any places among the others.

    changes: weights of the sources in `base`. joining: the draw at which each new source joins.
    """
    names = [*base]
    for name in joining:
        names.insert(data.draw(st.integers(0, len(names))), name)
    sources = {name: base.get(name, (MadeUp(10**6, ord(name[0])), 0)) for name in names}
    weights = dict(zip(base, (weight for _, weight in base.values()), strict=True))
    before = {at: dict(zip(base, each, strict=True)) for at, each in changes.items()}
    schedule, current = {}, weights
    for at in sorted({*changes, *joining.values()}):
        current = before.get(at, current)
        joined = {name: 0.5 if start <= at else 0 for name, start in joining.items()}
        schedule[at] = current | joined
    mix = Mixture(sources, schedule=schedule, **options)
    return Mixture(base, schedule=before, **options), mix, {0: weights, **schedule}


def named(mix: Mixture, start: int, stop: int) -> list[tuple[str, int]]:
    return [(mix.names[source], number) for source, number in pairs(mix.draws(start, stop))]


@given(
    st.lists(st.sampled_from([1e-6, 0.1, 1, 3.5]), min_size=1, max_size=4),
    st.lists(st.integers(1, 200), min_size=1, max_size=4),
    st.lists(st.integers(1, 300), max_size=2, unique=True),
    st.sampled_from(["repeat", "drop", "stop"]),
    st.integers(0, 5),
    st.data(),
)
def test_draws_before_a_source_joins_do_not_depend_on_it(
    weights: list[float],
    joins: list[int],
    switches: list[int],
    exhausted: Any,
    seed: int,
    data: st.DataObject,
) -> None:
    base = {
        name: (MadeUp(10**6, mark), weight)
        for mark, (name, weight) in enumerate(zip("abcd", weights, strict=False))
    }
    changes = {at: list(reversed(weights)) for at in switches}
    joining = dict(zip("wxyz", joins, strict=False))
    plain, mix, rows = extended(base, changes, joining, data, exhausted=exhausted, seed=seed)
    join = min(joins)
    assert named(mix, 0, join) == named(plain, 0, join)
    for draws in (0, 1, join // 2, join):
        assert mix.fingerprint_of(draws) == plain.fingerprint_of(draws)
    assert mix.fingerprint_of(join + 1) != plain.fingerprint_of(join + 1)
    every = named(mix, 0, 500)
    # A second source that joins later changes nothing before it either.
    for name, start in joining.items():
        mine = [number for each, number in every if each == name]
        assert mine == list(range(len(mine)))
        assert name not in [each for each, _ in every[:start]]
    # From its first draw on, a source has its share to within the bound of any phases.
    for start, stop in pairwise([0, *sorted({*joins, *switches}), 500]):
        current = rows[max(at for at in rows if at <= start)]
        total = sum(current.values())
        active = sum(map(bool, current.values()))
        drawn = Counter(name for name, _ in every[start:stop])
        for name, weight in current.items():
            share = weight / total
            bound = (1 + share * (active - 2)) * (1 + 2**-10)
            assert abs(drawn[name] - share * (stop - start)) <= max(bound, 0) + 1e-9


def by_definition(changes: dict[int, list[int]], draws: int) -> list[tuple[int, int]]:
    """Draws one by one, in fractions. Every source starts, alone, half way to its first draw."""
    progress, drawn, found = {}, Counter(), []
    for draw in range(draws):
        weights = changes[max(at for at in changes if at <= draw)]
        for source, weight in enumerate(weights):
            if weight:
                progress.setdefault(source, Fraction(1, 2))
        time, source = min(
            ((1 - progress[source]) / weight, source)
            for source, weight in enumerate(weights)
            if weight
        )
        for each, weight in enumerate(weights):
            if weight:
                progress[each] += weight * time
        progress[source] -= 1
        found.append((source, drawn[source]))
        drawn[source] += 1
    return found


@given(st.lists(st.sampled_from([(4, 2, 2), (2, 4, 2), (2, 2, 4), (0, 4, 4)]), max_size=3))
def test_a_source_that_joins_alone_is_half_way_to_its_first_draw(rows: list[Any]) -> None:
    # Shares of powers of two have exact ticks.
    changes = {0: (8, 0, 0), 10: (4, 0, 4), 50: (4, 2, 2)}
    changes |= {70 + 13 * at: row for at, row in enumerate(rows)}
    schedule = {at: dict(zip("abc", row, strict=True)) for at, row in changes.items() if at}
    mix = mixture([8, 0, 0], schedule=schedule)
    assert pairs(mix.draws(0, 150)) == by_definition(changes, 150)


def test_a_run_is_resumed_with_a_source_that_was_added() -> None:
    web, code, math_ = MadeUp(50), MadeUp(20, 1), MadeUp(30, 2)
    before = Mixture({"web": (web, 0.8), "code": (code, 0.2)}, seed=4)
    weights = {"web": 0.5, "math": 0.3, "code": 0.2}
    after = Mixture(
        {"web": (web, 0.8), "math": (math_, 0), "code": (code, 0.2)}, 4, schedule={40: weights}
    )
    with BatchLoader(before, 8, seed=2) as loader:
        first = [next(loader) for _ in range(3)]
        early = loader.state_dict()
        first += [next(loader) for _ in range(2)]
        state = loader.state_dict()
    for each in (early, state):
        with BatchLoader(after, 4, seed=2, rank=1, world_size=2) as loader:
            loader.load_state_dict(each)
    with BatchLoader(after, 8, seed=2) as loader:
        loader.load_state_dict(state)
        rest = [next(loader) for _ in range(15)]
        later = loader.state_dict()
    rows = np.concatenate([*first, *rest])
    which, _ = after.draws(0, 160)
    assert np.array_equal(rows[:, 0], np.array([0, 2, 1])[which])
    assert set(rows[:40, 0]) == {0, 1}
    # Nothing is skipped or repeated: each epoch of each source has every sample once.
    for mark, length in ((0, 50), (1, 20), (2, 30)):
        mine = rows[rows[:, 0] == mark][:, 1]
        assert sorted(mine[:length]) == list(range(length))[: len(mine)] or len(mine) < length
        assert len(set(mine[:length])) == min(length, len(mine))
    # A source that was never drawn may be removed again, but not one that was.
    BatchLoader(before, 8, seed=2).load_state_dict(state)
    with pytest.raises(UsageError, match="fingerprint"):
        BatchLoader(before, 8, seed=2).load_state_dict(later)
    # It cannot join in the past.
    earlier = Mixture(
        {"web": (web, 0.8), "math": (math_, 0), "code": (code, 0.2)}, 4, schedule={39: weights}
    )
    with pytest.raises(UsageError, match="fingerprint"):
        BatchLoader(earlier, 8, seed=2).load_state_dict(state)
