"""The flags: those of `build` come from the fields of BuildConfig, all others are Beam's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any

from fineshards.config import (
    NOT_ESTIMATED,
    PATTERNS,
    BuildConfig,
    choices,
    deciding_flags,
    flags,
    kinds,
)
from fineshards.errors import FineshardsError
from fineshards.number_parser import byte_count, count, count_or_share
from fineshards.parser import Parser, boolean, one_of
from fineshards.pipeline.recipe_flags import with_recipe

# In a text on the command line, where a shell has none.
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def add_build_flags(parser: Parser) -> None:
    """Adds the flags of `build`; every value may be given as `--flag=value`, as templates do."""
    _add_flags(parser, [flag.name for flag in flags()])


def add_append_flags(parser: Parser) -> None:
    """Adds the flags of `append`: those of `build` that the dataset has not decided."""
    own = ("output", "append", "share", *deciding_flags())
    _add_flags(parser, [flag.name for flag in flags() if flag.name not in own])


def add_estimate_flags(parser: Parser) -> None:
    """Adds the flags of `estimate`: those of `build`, of which none must be given."""
    _add_flags(parser, [flag.name for flag in flags() if flag.name not in NOT_ESTIMATED], ())


def add_input_and_step_flags(parser: Parser) -> None:
    """Adds the flags of `build` that name the input, and steps without a recipe."""
    groups = {flag.name: flag.metadata["group"] for flag in flags()}
    wanted = (groups["input"], groups["where"])
    left_out = ("recipe", "keep_keys", *NOT_ESTIMATED)
    _add_flags(parser, [name for name in groups if groups[name] in wanted and name not in left_out])


def sample_config(args: argparse.Namespace, **more: Any) -> BuildConfig:
    """The configuration of the flags above; its output is not used."""
    return BuildConfig(**with_recipe(_given(args) | more) | {"output": "out"})


def _add_flags(
    parser: Parser, names: Container[str], required: Container[str] = ("output",)
) -> None:
    groups: dict[str, argparse._ArgumentGroup] = {}
    texts = _help_texts()
    for flag in flags():
        if flag.name not in names:
            continue
        title, metavar = flag.metadata["group"], flag.metadata["metavar"]
        # Without defaults, which are those of BuildConfig: a recipe may have other ones.
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": metavar}
        if flag.name in PATTERNS:
            options |= {"action": "extend", "nargs": "+"}
        elif bool in kinds(flag):
            options |= {"type": boolean, "nargs": "?", "const": True, "metavar": "true|false"}
        elif choices(flag):
            options |= {"type": one_of(choices(flag)), "choices": choices(flag)}
        elif flag.name == "max_bad_rows":
            options |= {"type": count_or_share}
        elif flag.name == "text_template":
            options |= {"type": _unescaped}
        elif flag.name == "recipe":
            options |= {"action": _RecipeAction}
        elif int in kinds(flag):
            options |= {"type": byte_count if flag.name.endswith("_bytes") else count}
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(
            f"--{flag.name}",
            required=flag.name in required,
            help=texts.get(flag.name),
            **options,
        )


def _help_texts() -> dict[str, str]:
    """The description of each field of BuildConfig, from its docstring."""
    arguments = (BuildConfig.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()).replace("%", "%%") for name, text in found}


def parse_build_flags(parser: Parser, argv: Sequence[str]) -> BuildConfig:
    """The configuration that a command line asks for; raises UsageError for what is wrong."""
    return config_of(parser.parse_for_beam(argv))


def config_of(args: argparse.Namespace) -> BuildConfig:
    """The configuration of parsed flags, and of the arguments that are left, for Beam."""
    return BuildConfig(**with_recipe(_given(args)), beam_args=args.beam_args)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of `build` among parsed ones."""
    return {flag.name: getattr(args, flag.name) for flag in flags() if hasattr(args, flag.name)}


class _RecipeAction(argparse.Action):
    """Takes a recipe. One whose table [build] has an output makes --output optional."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *given: Any
    ) -> None:
        recipe = given[0]
        setattr(namespace, self.dest, recipe)
        output = parser._option_string_actions["--output"]
        if not output.required:  # as for `estimate`
            return
        with suppress(FineshardsError):  # what is wrong with it is said when it is read
            output.required = "output" not in with_recipe({"recipe": recipe})


def _unescaped(text: str) -> str:
    """A text with what its escapes mean."""

    def meaning(found: re.Match[str]) -> str:
        if found[0] not in _ESCAPES:
            known = ", ".join(_ESCAPES)
            raise argparse.ArgumentTypeError(f"has {found[0]}, which is none of {known}: {text!r}")
        return _ESCAPES[found[0]]

    return re.sub(r"\\.?", meaning, text, flags=re.DOTALL)
