"""Recipes as TOML text: the inverse of `parse_recipe`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from fineshards.curation.recipe import (
    PER_LANGUAGE,
    Recipe,
    default_parameters,
    parameters_of,
    parse_recipe,
)
from fineshards.errors import UsageError
from fineshards.shards.job.recipe_record import RecipeRecord, StepRecord

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LINE = 100


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
        for each in recipe.steps:
            parameters = parameters_of(each.step)
            records.append(StepRecord.of(each.use, parameters, each.step.VERSION, {}, False))
        for name, value in recipe.build.items():
            if value is not None:
                head += _assignment(name, _as_flag(value))
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


def _as_flag(value: Any) -> Any:
    """A value of an option as a flag takes it: paths and fractions as text."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, Fraction) else value


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
        pairs = ", ".join(f"{_key(name)} = {to_toml(each)}" for name, each in value.items())
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
    for each in value:
        yield f"    {to_toml(each)},"
    yield "]"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else to_toml(name)


def _one_line(text: str) -> str:
    """A text for a comment, which has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
