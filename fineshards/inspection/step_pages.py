"""How a person reads what the steps of recipes are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from fineshards.curation.step_docs import StepDescription

_COLUMNS = 98


def describe_steps(steps: Sequence[StepDescription]) -> list[str]:
    """One line per step, by kind."""
    widest = max(len(step.name) for step in steps)
    lines: list[str] = []
    for kind in dict.fromkeys(step.kind for step in steps):
        lines += [""] * bool(lines)
        lines.append(kind)
        for step in steps:
            if step.kind == kind:
                summary = textwrap.shorten(step.summary, _COLUMNS - widest - 4, placeholder=" …")
                lines.append(f"  {step.name:<{widest}}  {summary}")
    return [
        *lines,
        "",
        "Also: datatrove:NAME, a block of datatrove, and package.module:function, one of your own.",
        "fineshards recipe steps NAME shows the parameters of a step.",
    ]


def describe_parameters(step: StepDescription) -> list[str]:
    """A step's page: what it does, and its parameters."""
    about = step.about.split("\n")
    return [f"{step.name} ({step.kind})", "", *about, *_parameter_lines(step)]


def _parameter_lines(step: StepDescription) -> Iterator[str]:
    if not step.parameters:
        yield from ("", "It has no parameters.")
        return
    yield from ("", "parameters:")
    for each in step.parameters:
        default = "required" if each.default is None else f"default {each.default}"
        yield from _wrapped(f"{each.name}: {each.type}; {default}", "  ", "      ")
        yield from _wrapped(each.description, "      ", "      ")


def _wrapped(text: str, first: str, others: str) -> list[str]:
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )
