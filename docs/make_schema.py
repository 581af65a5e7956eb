"""Writes `recipe.schema.json`, the JSON Schema of recipes, from the steps. Run by `make api`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fineshards.config import BuildConfig
from fineshards.curation.parameters import parameters_of_class
from fineshards.curation.recipe import (
    STEPS,
    default_parameters,
    step_class,
    takes_languages,
)
from fineshards.curation.recipe_text import describe_step, to_toml
from fineshards.flags import choices, flags_of, kinds
from fineshards.pipeline.recipe_flags import flags_of_recipes

PATH = Path(__file__).with_name("recipe.schema.json")
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}
# Steps that are other people's code: their parameters are not known here.
_OTHERS = r"^[^:]+:[^:]+$"


def schema() -> dict[str, Any]:
    """The schema, of what `tomllib` makes of a recipe."""
    names = sorted(STEPS.own)
    known = {"enum": names}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of fineshards",
        "description": "Generated from the classes of the steps by `make api`; do not edit.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "description": {"type": "string", "description": "A line for people."},
            "build": _build(),
            "steps": {
                "description": "What documents pass before they are tokenized, in order.",
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["use"],
                    "properties": {"use": {"anyOf": [known, {"pattern": _OTHERS}]}},
                    "allOf": [
                        {
                            "if": {"properties": {"use": {"const": name}}},
                            "then": {"$ref": f"#/$defs/{name}"},
                        }
                        for name in names
                    ],
                },
            },
        },
        "$defs": {name: _step(name) for name in names},
    }


def schema_text() -> str:
    """The content of the file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _build() -> dict[str, Any]:
    """The flags of `build` that a recipe may give."""
    taken = flags_of_recipes()
    properties: dict[str, Any] = {}
    for flag in flags_of(BuildConfig):
        if flag.name in taken:
            types = [kind for kind in kinds(BuildConfig, flag.name) if kind in _PLAIN]
            found: dict[str, Any] = {"type": sorted({_PLAIN[kind] for kind in types})}
            if choices(BuildConfig, flag.name):
                found = {"enum": list(choices(BuildConfig, flag.name))}
            elif flag.name == "input":
                found = {"type": ["array", "string"], "items": {"type": "string"}}
            properties[flag.name] = found
    return {
        "description": "Flags of fineshards build.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _step(name: str) -> dict[str, Any]:
    step, described = step_class(name), describe_step(name)
    hints, texts = get_type_hints(step), {each.name: each for each in described.parameters}
    parameters, defaults = parameters_of_class(step), default_parameters(name)
    properties: dict[str, Any] = {"use": {"const": name}}
    for parameter in parameters:
        about = texts[parameter].description
        if texts[parameter].default is not None:
            about += f" Default: {to_toml(defaults[parameter])}."
        properties[parameter] = {"description": about, **_type(hints[parameter])}
    found = {
        "description": described.summary,
        "type": "object",
        "required": ["use", *(name for name in parameters if name not in defaults)],
        "additionalProperties": False,
        "properties": properties,
    }
    if takes_languages(step):
        column, tables = "language_column", "per_language"
        found["dependentRequired"] = {column: [tables], tables: [column]}
        properties |= _per_language(name, [*parameters])
    return found


def _per_language(step: str, parameters: Sequence[str]) -> dict[str, Any]:
    """What filters and rewrites take in addition to their own parameters."""
    own = {name: {"$ref": f"#/$defs/{step}/properties/{name}"} for name in parameters}
    label = {"type": "string", "description": "The language, as the column names it."}
    return {
        "language_column": {
            "type": "string",
            "description": "The column of the input, or the score, that has the language.",
        },
        "per_language": {
            "description": "What differs for documents of a language.",
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["label"],
                "additionalProperties": False,
                "properties": {"label": label, **own},
            },
        },
    }


def _type(hint: Any) -> dict[str, Any]:
    """The schema of the values that a parameter of a type takes."""
    if get_origin(hint) in (Union, UnionType):
        return {"anyOf": [_type(kind) for kind in get_args(hint)]}
    if hint is NoneType:
        return {"const": False}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is tuple:
        items = [_type(kind) for kind in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    raise TypeError(f"a parameter of type {hint} has no schema")


if __name__ == "__main__":
    PATH.write_text(schema_text())
