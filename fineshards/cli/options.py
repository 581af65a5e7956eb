"""The flags of `build` and `export`, which come from the fields of their options."""

import argparse
import re
from collections.abc import Container, Sequence
from typing import Any

from fineshards.config import NOT_ESTIMATED, BuildConfig
from fineshards.exports.export_options import ExportOptions
from fineshards.flags import (
    choices,
    deciding,
    flags_of,
    help_texts,
    kinds,
    takes_several,
)
from fineshards.parser import Parser, boolean
from fineshards.pipeline.recipe_flags import with_recipe

_NAMES = [flag.name for flag in flags_of(BuildConfig)]
# The flags that a help page shows at first.
_COMMON = (
    *("input", "dataset", "output", "text_column", "tokenizer", "dtype", "shard_tokens"),
    *("shuffle_seed", "test_fraction", "test_input", "recipe", "dedup", "limit", "workers"),
    "overwrite",
)
# In a text on the command line, where a shell has none.
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def add_build_flags(parser: Parser) -> None:
    """Adds the flags of `build`; every value may be given as `--flag=value`, as templates do."""
    _add_flags(parser, _NAMES)


def add_append_flags(parser: Parser) -> None:
    """Adds the flags of `append`: those of `build` that the dataset has not decided."""
    decided = ("output", "append", "share", *deciding(BuildConfig))
    _add_flags(parser, [name for name in _NAMES if name not in decided])


def add_estimate_flags(parser: Parser) -> None:
    """Adds the flags of `estimate`: those of `build`, of which none must be given."""
    _add_flags(parser, [name for name in _NAMES if name not in NOT_ESTIMATED])


def add_input_and_step_flags(parser: Parser) -> None:
    """Adds the flags of `build` that name the input, and steps without a recipe."""
    groups = {flag.name: flag.metadata["group"] for flag in flags_of(BuildConfig)}
    wanted = (groups["input"], groups["where"])
    left_out = ("recipe", "keep_keys", *NOT_ESTIMATED)
    _add_flags(parser, [name for name in groups if groups[name] in wanted and name not in left_out])


def sample_config(args: argparse.Namespace, **more: Any) -> BuildConfig:
    """The configuration of the flags above; its output is not used."""
    return BuildConfig(**with_recipe(_given(args) | more) | {"output": "out"})


def add_export_flags(parser: Parser) -> None:
    """Adds the flags of `export`."""
    names = [flag.name for flag in flags_of(ExportOptions)]
    _add_flags(parser, names, ExportOptions, ("to", "output"))


def export_options(args: argparse.Namespace) -> ExportOptions:
    """The options of an export, of the flags above."""
    return ExportOptions(folder=args.folder, **_given(args, ExportOptions))


def _add_flags(
    parser: Parser,
    names: Container[str],
    options: type = BuildConfig,
    required: Container[str] = (),
) -> None:
    groups = {group.title: group for group in parser._action_groups}
    texts = help_texts(options)
    # A word after `--copies` may be the dataset's folder.
    has_folder = any(not action.option_strings for action in parser._actions)
    for flag in flags_of(options):
        if flag.name not in names:
            continue
        title, metavar = flag.metadata["group"], flag.metadata["metavar"]
        # Without defaults, which are those of the options: a recipe may have other ones.
        how: dict[str, Any] = {"default": argparse.SUPPRESS}
        if takes_several(options, flag.name):
            how |= {"action": "extend", "nargs": "+", "metavar": metavar}
        elif bool in kinds(options, flag.name) and has_folder:
            how |= {"action": "store_true"}
        elif bool in kinds(options, flag.name):
            how |= {"type": boolean, "nargs": "?", "const": True, "metavar": "true|false"}
        elif words := choices(options, flag.name):
            how |= {"choices": words}
        else:
            how |= {"metavar": metavar}
        if flag.name in ("text_template", "text_separator"):
            how |= {"type": _unescaped}
        about, plugins = texts.get(flag.name, "").replace("%", "%%"), flag.metadata["plugins"]
        if plugins is not None:
            about += " Installed: %(plugins)s."
        if options is BuildConfig and not (parser.everything or flag.name in _COMMON):
            about = argparse.SUPPRESS
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        action = groups[title].add_argument(
            f"--{flag.name}",
            required=flag.name in required,
            help=about,
            **how,
        )
        action.plugins = plugins  # type: ignore[attr-defined]


def parse_build_flags(parser: Parser, argv: Sequence[str]) -> BuildConfig:
    """The configuration that a command line asks for; raises UsageError for what is wrong."""
    return config_of(parser.parse_for_beam(argv))


def config_of(args: argparse.Namespace) -> BuildConfig:
    """The configuration of parsed flags, and of the arguments that are left, for Beam."""
    return BuildConfig(**with_recipe(_given(args)), beam_args=args.beam_args)


def _given(args: argparse.Namespace, options: type = BuildConfig) -> dict[str, Any]:
    """The flags of a class of options among parsed ones."""
    names = [flag.name for flag in flags_of(options)]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def _unescaped(text: str) -> str:
    """A text with what its escapes mean."""

    def meaning(escape: re.Match[str]) -> str:
        if escape[0] not in _ESCAPES:
            escapes = ", ".join(_ESCAPES)
            raise argparse.ArgumentTypeError(f"has {escape[0]}, not one of {escapes}: {text!r}")
        return _ESCAPES[escape[0]]

    return re.sub(r"\\.?", meaning, text, flags=re.DOTALL)
