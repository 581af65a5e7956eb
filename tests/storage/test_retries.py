"""Requests that are made again: which errors, how long, and waits that differ."""

import logging
import random
from collections.abc import Callable

import pytest

from fineshards.storage import retries
from fineshards.storage.retries import retried


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries, "time", clock)
    return clock


def failing(times: int) -> Callable[[], int]:
    """An action that fails so often, and then returns how often it was called."""
    calls = 0

    def action() -> int:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise ConnectionError(f"failure {calls}")
        return calls

    return action


def waits_of(clock: Clock, times: int, least: float = 0.0) -> list[float]:
    clock.waits = []
    assert retried(failing(times), lambda _: least, str) == times + 1
    return clock.waits


def test_waits_grow_and_differ_also_under_one_seed(clock: Clock) -> None:
    """Many workers whose requests fail together should not come back together."""
    seen = []
    for _ in range(50):
        random.seed(1)
        seen.append(tuple(waits_of(clock, 8)))
    assert len(set(seen)) == 50
    for number, waits in enumerate(zip(*seen, strict=True)):
        longest = min(2.0**number, 60.0)
        assert 0 <= min(waits) < longest / 2 < max(waits) <= longest


def test_a_wait_that_was_asked_for_is_kept_and_differs(clock: Clock) -> None:
    first, second = waits_of(clock, 3, least=20.0), waits_of(clock, 3, least=20.0)
    assert min(first + second) >= 20.0
    assert first != second


def test_five_minutes_of_outage_are_survived_and_logged_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def action() -> float:
        if clock.now < 300.0:
            raise ConnectionError("no route")
        return clock.now

    def attempt() -> float | None:
        clock.now = 0.0
        try:
            return retried(action, lambda _: 0.0, lambda error: f"store: {error}")
        except ConnectionError:
            return None

    with caplog.at_level(logging.WARNING, "fineshards"):
        assert attempt() is not None
    assert caplog.messages == ["store: no route; retrying"]


def test_what_stays_and_what_is_asked_to_wait_too_long_is_raised_at_once(clock: Clock) -> None:
    for pause in (None, retries.RETRY_SECONDS + 1):
        with pytest.raises(ConnectionError, match="failure 1"):
            retried(failing(5), lambda _, pause=pause: pause, str)
    assert clock.waits == []


def test_it_ends_after_the_time_that_it_is_given(clock: Clock) -> None:
    with pytest.raises(ConnectionError):
        retried(failing(10**6), lambda _: 0.0, str, seconds=30.0)
    assert 30.0 < clock.now < 30.0 + 64.0
