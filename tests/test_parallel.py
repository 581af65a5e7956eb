"""Shares: every element once, neighbours to the same thread, the last to an idle thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.transforms.parallel import Shares


@given(
    elements=st.integers(0, 40),
    threads=st.integers(1, 9),
    turns=st.lists(st.integers(0, 8), max_size=60),
)
def test_every_element_is_dealt_out_once(elements: int, threads: int, turns: list[int]) -> None:
    shares = Shares(range(elements), threads)
    ways = [shares.of(number) for number in range(threads)]
    dealt = [next(ways[turn % threads], None) for turn in turns]
    rest = [element for way in ways for element in way]
    given_out = [element for element in dealt if element is not None] + rest
    assert sorted(given_out) == list(range(elements))


@given(elements=st.integers(0, 40), threads=st.integers(1, 9))
def test_in_step_every_thread_has_a_run_of_its_own(elements: int, threads: int) -> None:
    shares = Shares(range(elements), threads)
    ways = [shares.of(number) for number in range(threads)]
    runs: list[list[int]] = [[] for _ in ways]
    for _ in range(elements // threads):
        for run, way in zip(runs, ways, strict=True):
            run.append(next(way))
    for run in runs:
        assert run == list(range(run[0], run[-1] + 1)) if run else True
    assert runs == sorted(runs)


def test_who_is_done_takes_the_last_of_the_longest_run() -> None:
    shares = Shares(range(9), 3)
    first, second, third = (shares.of(number) for number in range(3))
    assert [next(first), next(first), next(first)] == [0, 1, 2]
    assert next(second) == 3
    assert next(first) == 8
    assert next(first) == 5
    assert list(third) == [6, 7, 4]
    assert list(second) == []


def test_what_is_dropped_is_not_dealt_out() -> None:
    shares = Shares(range(9), 2)
    way = shares.of(0)
    assert next(way) == 0
    shares.drop()
    assert list(way) == list(shares.of(1)) == []


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_threads_at_once_get_every_element_once(threads: int) -> None:
    shares = Shares(range(20_000), threads)
    with ThreadPoolExecutor(threads) as pool:
        runs = list(pool.map(lambda number: list(shares.of(number)), range(threads)))
    assert sorted(element for run in runs for element in run) == list(range(20_000))
