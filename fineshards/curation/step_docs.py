"""What the steps of recipes are, from their classes: as data, and in lines for a person."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fineshards.curation.recipe import (
    STEPS,
    default_of,
    parameters_of_class,
    step_class,
)
from fineshards.curation.recipe_text import to_toml
from fineshards.curation.step import Judge, Keyed, KeyedSpans, Scorer, Step

_COLUMNS = 98
_SECTION = re.compile(r"^(Args|Raises|Returns|Example):\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a step. default: as TOML; None if a recipe must give the parameter."""

    name: str
    type: str
    default: str | None
    description: str


@dataclass(frozen=True, slots=True)
class StepDescription:
    """A step that recipes can name, as its class describes it. about: the text before `Args`."""

    name: str
    kind: str
    about: str
    parameters: tuple[Parameter, ...]

    @property
    def summary(self) -> str:
        """The first sentence."""
        first = " ".join(self.about.partition("\n\n")[0].split())
        return re.split(r"(?<=[.:]) (?=[A-Z])", first)[0]


def step_names() -> list[str]:
    """The names of all steps."""
    return sorted(STEPS)


def describe_step(name: str) -> StepDescription:
    """A step by its name; raises UsageError if there is none."""
    step = step_class(name)
    about, *sections = _SECTION.split(inspect.getdoc(step) or "")
    texts = _arguments(dict(zip(sections[::2], sections[1::2], strict=True)).get("Args", ""))
    hints = get_type_hints(step)
    parameters = [
        Parameter(each.name, _type(hints[each.name]), _default(each), texts[each.name])
        for each in parameters_of_class(step)
    ]
    return StepDescription(name, _kind(step), about.strip(), tuple(parameters))


def _kind(step: type[Step]) -> str:
    if issubclass(step, KeyedSpans):
        return "deduplication of parts of documents"
    if issubclass(step, Keyed):
        return "deduplication of documents"
    if issubclass(step, Scorer):
        return "score"
    return "rewrite" if issubclass(step, Judge) and step.REWRITES else "filter"


def _type(kind: Any) -> str:
    """The type of a parameter in words."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_type, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if kind is NoneType:
        return "false"
    return words.get(kind) or ", ".join(map(repr, get_args(kind))) or str(kind)


def _default(parameter: Any) -> str | None:
    default = default_of(parameter)
    return None if default is MISSING else to_toml(default)


def _arguments(section: str) -> Mapping[str, str]:
    """The description of each argument in a section of a docstring, as one line."""
    found = re.findall(r"^(\w+): (.*(?:\n .*)*)", textwrap.dedent(section), re.MULTILINE)
    # A recipe says false where Python says None.
    return {name: re.sub(r"\bNone\b", "false", " ".join(text.split())) for name, text in found}


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
        "Also: package.module:function, one of your own.",
        "Filters and rewrites also take language_column and tables [[steps.per_language]].",
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
