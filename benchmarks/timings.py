"""Timings of alternatives that are run repeatedly, in turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Timing:
    """An action that was run repeatedly.

    items: number of `unit` per run. runs: seconds of each run, in order. bytes: bytes that a run
    reads, if known. beside: name of the timing to compare with. tokens: tokens that a run reads, if
    items are not tokens.
    """

    name: str
    items: int
    unit: str
    runs: tuple[float, ...]
    bytes: int | None = None
    beside: str | None = None
    tokens: int | None = None

    @property
    def seconds(self) -> float:
        """Median seconds of a run."""
        return median(self.runs)

    @property
    def rate(self) -> float:
        """Items per second."""
        return self.items / self.seconds


def in_turn(
    actions: Mapping[str, Callable[[], object]],
    rounds: int,
    prepare: Callable[[], object] = lambda: None,
) -> dict[str, tuple[float, ...]]:
    """Seconds of each action in each round. Actions take turns, so drift affects all the same.

    prepare: called before each action; not measured.
    """
    runs: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            prepare()
            began = time.perf_counter()
            action()
            runs[name].append(time.perf_counter() - began)
    return {name: tuple(seconds) for name, seconds in runs.items()}


def table(timings: Sequence[Timing]) -> Table:
    """The timings as a table."""
    shown = Table(title="the loader", caption="medians")
    for title in (
        "",
        "seconds",
        "min - max",
        "per second",
        "",
        "M tokens/s",
        "GB/s",
        "rate / other",
    ):
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
            "" if timing.tokens is None else f"{timing.tokens / 1e6 / timing.seconds:,.1f}",
            "" if size is None else f"{size / 1e9 / timing.seconds:.2f}",
            "" if beside is None else f"{timing.rate / beside.rate:.2f} / {beside.name}",
        )
    return shown


def to_json(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """The timings as JSON, with rates."""
    return [
        asdict(timing) | {"seconds": timing.seconds, "items_per_second": timing.rate}
        for timing in timings
    ]
