"""How long one thing takes, done again and again beside other ways of doing the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Timing:
    """One thing, done again and again.

    items: of `unit`, a run. bytes: what a run reads, if that matters. runs: seconds, in order.
    beside: the timing that it is compared with.
    """

    name: str
    items: int
    unit: str
    runs: tuple[float, ...]
    bytes: int | None = None
    beside: str | None = None

    @property
    def seconds(self) -> float:
        """The median."""
        return median(self.runs)

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds


def in_turn(
    actions: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, tuple[float, ...]]:
    """Seconds of each action in each round; one after the other, so that drift hits all alike."""
    runs: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            began = time.perf_counter()
            action()
            runs[name].append(time.perf_counter() - began)
    return {name: tuple(seconds) for name, seconds in runs.items()}


def table(timings: Sequence[Timing]) -> Table:
    """The timings for a terminal."""
    shown = Table(title="the loader", caption="medians")
    for title in ("", "seconds", "min - max", "a second", "", "GB/s", "rate / beside"):
        shown.add_column(title, justify="right" if title else "left")
    by_name = {timing.name: timing for timing in timings}
    for timing in timings:
        size, beside = timing.bytes, by_name.get(timing.beside or "")
        shown.add_row(
            timing.name,
            f"{timing.seconds:.3g}",
            f"{min(timing.runs):.3g} - {max(timing.runs):.3g}",
            f"{timing.rate:,.0f}" if timing.rate >= 1 else f"{timing.rate:.3g}",
            timing.unit,
            "" if size is None else f"{size / 1e9 / timing.seconds:.2f}",
            "" if beside is None else f"{timing.rate / beside.rate:.2f} / {beside.name}",
        )
    return shown


def to_json(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """The timings' content, with the rates."""
    return [
        asdict(timing) | {"seconds": timing.seconds, "items_per_second": timing.rate}
        for timing in timings
    ]
