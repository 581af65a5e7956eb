"""Recipes as TOML text, the inverse of `parse_recipe`; and what their steps are, as text."""

import inspect
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fineshards.curation.parameters import parameters_of_class
from fineshards.curation.recipe import (
    PER_LANGUAGE,
    STEPS,
    Recipe,
    default_parameters,
    parameters_of,
    parse_recipe,
    step_class,
)
from fineshards.curation.step import Judge, Keyed, KeyedSpans, Scorer, Step
from fineshards.errors import UsageError
from fineshards.shards.job.settings import RecipeRecord, StepRecord

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LINE = 100
_COLUMNS = 98
_SECTION = re.compile(r"^(Args|Raises|Returns|Example):\n", re.MULTILINE)


def recipe_text(recipe: RecipeRecord, comment: str = "", everything: bool = False) -> str:
    """A recipe as TOML. Parsed again, it has the same steps with the same parameters.

    comment: a line above it. everything: also the parameters that have their default.
    """
    lines = [f"# {_one_line(comment)}", ""] if comment else []
    for number, step in enumerate(recipe.steps):
        lines += [""] * bool(number)
        lines += _step_lines(step, everything)
    return "".join(f"{line}\n" for line in lines)


def toml_of(recipe: Recipe) -> str:
    """A recipe as the text of its file; raises UsageError for what such a text cannot say."""
    head = [f"description = {to_toml(recipe.description)}", "[build]"]
    try:
        records = []
        for named in recipe.steps:
            parameters = parameters_of(named.step)
            records.append(StepRecord.of(named.use, parameters, named.step.VERSION, {}, False))
        for name, value in recipe.build.items():
            if value is not None:
                # As a flag takes it: paths and fractions as text.
                is_text = isinstance(value, os.PathLike | Fraction)
                head += _assignment(name, str(value) if is_text else value)
        text = "\n".join([*head, recipe_text(RecipeRecord(tuple(records), ""))])
        same = parse_recipe(text, "the recipe").steps == recipe.steps
    except TypeError:
        same = False
    if not same:
        raise UsageError(
            "the recipe has a value that a recipe file cannot have: give numbers, text, true, "
            "false, and lists and tables of them."
        )
    return text


def to_toml(value: Any) -> str:
    """A scalar, a list or a mapping as a value of TOML. TOML has no null: None is false."""
    if value is None:
        return "false"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # Strings of JSON are strings of TOML, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(name)} = {to_toml(item)}" for name, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(to_toml, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _step_lines(step: StepRecord, everything: bool) -> Iterator[str]:
    yield f"[[steps]]  # version {step.version}"
    for name, value in step.pins.items():
        yield f"# {_one_line(f'{name}: {value}')}"
    yield f"use = {to_toml(step.use)}"
    parameters = step.parameters
    defaults = default_parameters(step.use)
    tables = parameters.get(PER_LANGUAGE)
    if isinstance(tables, list) and all(isinstance(table, dict) for table in tables):
        # After all else, which would be part of the last one.
        del parameters[PER_LANGUAGE]
    else:
        tables = []
    for name, value in parameters.items():
        if everything or name not in defaults or defaults[name] != value:
            yield from _assignment(name, value)
    for table in tables:
        yield f"[[steps.{PER_LANGUAGE}]]"
        for name, value in table.items():
            yield from _assignment(name, value)


def _assignment(name: str, value: Any) -> Iterator[str]:
    line = f"{_key(name)} = {to_toml(value)}"
    if len(line) <= _LINE or not isinstance(value, list):
        yield line
        return
    yield f"{_key(name)} = ["
    for item in value:
        yield f"    {to_toml(item)},"
    yield "]"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else to_toml(name)


def _one_line(text: str) -> str:
    """A text for a comment, which has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


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
    hints, defaults = get_type_hints(step), default_parameters(name)
    parameters = [
        Parameter(
            parameter,
            _type(hints[parameter]),
            to_toml(defaults[parameter]) if parameter in defaults else None,
            texts[parameter],
        )
        for parameter in parameters_of_class(step)
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


def _arguments(section: str) -> Mapping[str, str]:
    """The description of each argument in a section of a docstring, as one line."""
    arguments = re.findall(r"^(\w+): (.*(?:\n .*)*)", textwrap.dedent(section), re.MULTILINE)
    # A recipe says false where Python says None.
    return {name: re.sub(r"\bNone\b", "false", " ".join(text.split())) for name, text in arguments}


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
    lines = [f"{step.name} ({step.kind})", "", *step.about.split("\n"), ""]
    lines.append("parameters:" if step.parameters else "It has no parameters.")
    wrapper = textwrap.TextWrapper(_COLUMNS, break_on_hyphens=False, break_long_words=False)
    wrapper.subsequent_indent = " " * 6
    for parameter in step.parameters:
        default = "required" if parameter.default is None else f"default {parameter.default}"
        head = f"{parameter.name}: {parameter.type}; {default}"
        for indent, text in ((2, head), (6, parameter.description)):
            wrapper.initial_indent = " " * indent
            lines += wrapper.wrap(text)
    return lines
