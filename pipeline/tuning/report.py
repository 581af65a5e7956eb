"""The result of `tune`, as text and as JSON."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from fineshards.commands.wording import counted, duration
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
        """Mean tokens per second."""
        return sum(self.tokens_per_second) / len(self.tokens_per_second)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The probe: how much text and how many tokens, from `files` of the input's files."""

    files: int
    files_total: int
    text_bytes: int
    tokens: int
    copying_seconds: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The result of tuning. Its field names are the keys of --json.

    small: whether a build is nearly all start-up, so that no settings were tried. command: the
    command to run, with `out` for the output. flags: the advised flags; none if the defaults are
    best. input_known: whether the size of the input's text is known, not estimated. seconds: the
    time that tuning took.
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
    """Prints one JSON object."""
    print(json.dumps(asdict(advice)))


def print_advice(advice: Advice) -> None:
    """Prints the advice as text, with a table of the settings on a terminal."""
    console = Console(highlight=False, soft_wrap=True)
    if advice.small:
        print(
            "the input is too small for settings to matter: "
            f"{advice.expected.seconds:.1f} s with the defaults, nearly all of it start-up"
        )
    else:
        console.print(_probe(advice), markup=False)
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


def _probe(advice: Advice) -> str:
    sample = advice.sample
    return (
        f"tried settings for {duration(advice.seconds)} on {_bytes(sample.text_bytes)} of text "
        f"({counted(sample.tokens, 'token')}) from {sample.files:,} of "
        f"{counted(sample.files_total, 'file')}"
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
        return f"fastest with {' '.join(advice.flags)}:"
    if len(advice.tried) > 1:
        return f"use the defaults; no other setting is faster by more than {MARGIN:.0%}:"
    return "use the defaults:"


def _expected(advice: Advice) -> list[str]:
    expected = advice.expected
    about = "" if advice.small else "about "
    size = "" if advice.small or advice.input_known else "about "
    start_up = "" if advice.small else f", of which {advice.start_up_seconds:.1f} s start-up"
    return [
        f"input   {size}{_bytes(expected.text_bytes)} of text, "
        f"{about}{_round(expected.tokens, advice.small)} tokens",
        f"time    {about}{duration(expected.seconds)}{start_up}",
        f"disk    {about}{_bytes(expected.output_bytes)} of shards; "
        f"{_bytes(expected.free_bytes)} must be free during the build",
        f"memory  {_bytes(advice.peak_memory_bytes)} at most in the trials; it does not grow with "
        "the input",
    ]


def _round(count: int, exact: bool) -> str:
    """A count rounded to three digits, the precision of an estimate."""
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
