"""Shares: every element once, neighbours to the same thread, and idle threads take over."""

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
def test_every_element_is_given_out_once(elements: int, threads: int, turns: list[int]) -> None:
    shares = Shares(range(elements), threads)
    iterators = [shares.of(number) for number in range(threads)]
    first = [next(iterators[turn % threads], None) for turn in turns]
    rest = [element for iterator in iterators for element in iterator]
    given_out = [element for element in first if element is not None] + rest
    assert sorted(given_out) == list(range(elements))


@given(elements=st.integers(0, 40), threads=st.integers(1, 9))
def test_threads_of_equal_speed_each_work_through_their_own_run(
    elements: int, threads: int
) -> None:
    shares = Shares(range(elements), threads)
    iterators = [shares.of(number) for number in range(threads)]
    runs: list[list[int]] = [[] for _ in iterators]
    for _ in range(elements // threads):
        for run, iterator in zip(runs, iterators, strict=True):
            run.append(next(iterator))
    for run in filter(None, runs):
        assert run == list(range(run[0], run[-1] + 1))
    assert runs == sorted(runs)


def test_an_idle_thread_takes_the_last_element_of_the_longest_run() -> None:
    shares = Shares(range(9), 3)
    first, second, third = (shares.of(number) for number in range(3))
    assert [next(first), next(first), next(first)] == [0, 1, 2]
    assert next(second) == 3
    assert next(first) == 8
    assert next(first) == 5
    assert list(third) == [6, 7, 4]
    assert list(second) == []


def test_dropped_elements_are_not_given_out() -> None:
    shares = Shares(range(9), 2)
    iterator = shares.of(0)
    assert next(iterator) == 0
    shares.drop()
    assert list(iterator) == list(shares.of(1)) == []


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_concurrent_threads_get_every_element_once(threads: int) -> None:
    shares = Shares(range(20_000), threads)
    with ThreadPoolExecutor(threads) as pool:
        runs = list(pool.map(lambda number: list(shares.of(number)), range(threads)))
    assert sorted(element for run in runs for element in run) == list(range(20_000))
