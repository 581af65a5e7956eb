"""What `tune` says: for a person, and for machines."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from fineshards.commands.wording import duration
from fineshards.pipeline.tuning.estimates import Expectation
from fineshards.pipeline.tuning.setting_search import MARGIN


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting and the rates of its runs."""

    what: str
    flags: tuple[str, ...]
    advised: bool
    tokens_per_second: tuple[float, ...]
    text_bytes_per_token: float

    @property
    def rate(self) -> float:
        """The mean, in tokens a second."""
        return sum(self.tokens_per_second) / len(self.tokens_per_second)


@dataclass(frozen=True, slots=True)
class Sampled:
    """How much of the input was built: text and tokens, from `files` of its files."""

    files: int
    files_total: int
    text_bytes: int
    tokens: int
    copying_seconds: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The outcome of tuning.

    small: whether start-up is nearly all of a build, so that nothing was tried. command: to run,
    with `out` for the output. flags: those in it that are advised; none if the defaults are right.
    input_known: whether the size of the input's text is known and not an estimate.
    seconds: what tuning took.
    """

    small: bool
    command: tuple[str, ...]
    flags: tuple[str, ...]
    tried: tuple[Tried, ...]
    start_up_seconds: float
    sample: Sampled
    input_known: bool
    expected: Expectation
    peak_memory_bytes: int
    notes: tuple[str, ...]
    seconds: float


def print_json(advice: Advice) -> None:
    """One JSON object, with the fields' names."""
    print(json.dumps(asdict(advice)))


def print_advice(advice: Advice) -> None:
    """Lines, and on a terminal a table of what was tried."""
    console = Console(highlight=False, soft_wrap=True)
    if advice.small:
        print(
            "the input is so small that settings make no difference: "
            f"{advice.expected.seconds:.1f} s with the defaults, nearly all of it start-up"
        )
    else:
        console.print(_sampled(advice), markup=False)
        console.print()
        if console.is_terminal:
            console.print(_table(advice))
        else:
            print("\n".join(map(_line, advice.tried)))
        print()
        print(_verdict(advice))
    print(f"\n    {shlex.join(advice.command)}\n")
    print("\n".join(_expected(advice)))
    for note in advice.notes:
        print(f"note: {note}")


def _sampled(advice: Advice) -> str:
    sample = advice.sample
    return (
        f"tried on {_bytes(sample.text_bytes)} of text ({sample.tokens:,} tokens) from "
        f"{sample.files:,} of {sample.files_total:,} files, for {duration(advice.seconds)}"
    )


def _rates(tried: Tried) -> tuple[str, str, str]:
    rate = tried.rate
    runs = tried.tokens_per_second
    between = f"{min(runs) / 1e6:.2f} to {max(runs) / 1e6:.2f}" if len(runs) > 1 else ""
    return f"{rate / 1e6:.2f}", f"{rate * tried.text_bytes_per_token / 1e6:.1f}", between


def _line(tried: Tried) -> str:
    tokens, size, between = _rates(tried)
    runs = f" ({len(tried.tokens_per_second)} runs: {between})" if between else ""
    mark = "*" if tried.advised else " "
    return f"{mark} {tried.what}: {tokens}M tokens/s, {size} MB/s{runs}"


def _table(advice: Advice) -> Table:
    table = Table()
    table.add_column("setting")
    for name in ("M tokens/s", "MB/s", "runs"):
        table.add_column(name, justify="right")
    for tried in advice.tried:
        table.add_row(tried.what, *_rates(tried), style="bold green" if tried.advised else None)
    return table


def _verdict(advice: Advice) -> str:
    if advice.flags:
        return f"use {' '.join(advice.flags)}:"
    if len(advice.tried) > 1:
        return f"the defaults are fine, nothing is clearly (by {MARGIN:.0%}) quicker:"
    return "the defaults:"


def _expected(advice: Advice) -> list[str]:
    expected = advice.expected
    about = "" if advice.small else "about "
    size = "" if advice.small or advice.input_known else "about "
    start_up = "" if advice.small else f", {advice.start_up_seconds:.1f} s of it start-up"
    return [
        f"input   {size}{_bytes(expected.text_bytes)} of text, "
        f"{about}{_round(expected.tokens, advice.small)} tokens",
        f"time    {about}{duration(expected.seconds)}{start_up}",
        f"disk    {about}{_bytes(expected.output_bytes)} of shards; "
        f"{_bytes(expected.free_bytes)} must be free while it runs",
        f"memory  {_bytes(advice.peak_memory_bytes)} at most while trying; it does not grow with "
        "the input",
    ]


def _round(count: int, exact: bool) -> str:
    """Three digits are as much as a sample can tell."""
    if exact or count < 1000:
        return f"{count:,}"
    unit = 10 ** (len(str(count)) - 3)
    return f"{round(count / unit) * unit:,}"


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
