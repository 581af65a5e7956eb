"""The flags: those of `build` come from the fields of BuildConfig, all others are Beam's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fineshards.config import BuildConfig, choices, flags, kinds
from fineshards.pipeline.parser import Parser, one_of
from fineshards.pipeline.quantities import byte_count, count

# Runners whose job service has options of its own: pipeline/runners/portable.py.
_DESCRIBED = frozenset({"flink", "portable", "spark"})
# What `tune` takes of the flags of `build`, beside those that name the input.
_TUNED = ("tokenizer", "eot_token", "dtype", "tokenizer_engine", "max_bad_rows")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What to tune: `build` as it would be with the defaults.

    given: the flags of `build` that the user gave, to be given to it again. seconds: how long to
    try. work: folder for the probe, None for the system's temporary one.
    """

    config: BuildConfig
    given: tuple[str, ...]
    seconds: float
    work: str | None
    json: bool


def add_build_flags(parser: Parser) -> None:
    """Adds the flags of `build`; every value may be given as `--flag=value`, as templates do."""
    _add_flags(parser, [flag.name for flag in flags()])


def add_tune_flags(parser: Parser) -> None:
    """Adds the flags of `tune`: those of `build` that decide the work, and its own."""
    group = flags()[0].metadata["group"]
    inputs = [flag.name for flag in flags() if flag.metadata["group"] == group]
    _add_flags(parser, [*inputs, *_TUNED])
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--seconds",
        type=_seconds,
        metavar="N",
        default=60,
        help="How long to try, about. Default: 60.",
    )
    tuning.add_argument(
        "--work",
        metavar="FOLDER",
        help="Where a probe of the input and its builds lie meanwhile, best on the disk of the "
        "later output. Default: the system's temporary folder.",
    )


def _add_flags(parser: Parser, names: Container[str]) -> None:
    groups: dict[str, argparse._ArgumentGroup] = {}
    texts = _help_texts()
    for flag in flags():
        if flag.name not in names:
            continue
        title, metavar = flag.metadata["group"], flag.metadata["metavar"]
        options: dict[str, Any] = {"default": flag.default, "metavar": metavar}
        if flag.name == "input":
            options |= {"action": "extend", "nargs": "+", "default": []}
        elif bool in kinds(flag):
            options |= {"type": _boolean, "nargs": "?", "const": True, "metavar": "true|false"}
        elif choices(flag):
            options |= {"type": one_of(choices(flag)), "choices": choices(flag)}
        elif int in kinds(flag):
            options |= {"type": byte_count if flag.name.endswith("_bytes") else count}
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(
            f"--{flag.name}", required=flag.name == "output", help=texts.get(flag.name), **options
        )


def _help_texts() -> dict[str, str]:
    """The description of each field of BuildConfig, from its docstring."""
    arguments = (BuildConfig.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()).replace("%", "%%") for name, text in found}


def parse_build_flags(parser: Parser, argv: Sequence[str]) -> BuildConfig:
    """The configuration that a command line asks for; raises UsageError for what is wrong."""
    return config_of(parser, *parser.parse_known_args(argv))


def config_of(parser: Parser, args: argparse.Namespace, beam_args: Sequence[str]) -> BuildConfig:
    """The configuration of parsed flags, and of the arguments that are left, for Beam."""
    if beam_args and not beam_args[0].startswith("-"):
        parser.refuse(beam_args[0], ": files follow --input")
    given = {flag.name: getattr(args, flag.name) for flag in flags()}
    return BuildConfig(**given, beam_args=beam_args)


def parse_tune_flags(parser: Parser, argv: Sequence[str]) -> TuneOptions:
    """The options of a `tune` command; raises UsageError for what is wrong."""
    args = vars(parser.parse_args(list(argv)))
    own = {name: args.pop(name) for name in ("seconds", "work", "json")}
    given = []
    for name, value in args.items():
        if value != parser.get_default(name):
            values = value if isinstance(value, list) else [value]
            given += [f"--{name}={one}" for one in values]
    # The output is not known yet; nothing is written to it.
    return TuneOptions(BuildConfig(**args, output="out"), tuple(given), **own)


def launches_template(config: BuildConfig) -> bool:
    """Whether this is a template's launcher: Dataflow waits for a job file from it."""
    return any(arg.split("=")[0] == "--template_location" for arg in config.beam_args)


def runner_name(beam_args: Sequence[str]) -> str:
    """The runner that is asked for, in any of the ways that Beam takes: in lower case, without
    `runner`; empty if there is none. Quick, without Beam.
    """
    words = [word for arg in beam_args for word in arg.split("=", 1)]
    runner = dict(pairwise(words)).get("--runner", "")
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def check_beam_args(config: BuildConfig) -> None:
    """Raises UsageError for an argument that is not Beam's, if Beam itself can tell."""
    # What a template is given has been checked by Dataflow, which may add flags of its own.
    described = launches_template(config) or runner_name(config.beam_args) in _DESCRIBED
    if config.beam_args and not described:
        refuse_unknown(config.beam_args)


def refuse_unknown(
    beam_args: Sequence[str], add_described: Callable[[Any], None] = lambda parser: None
) -> None:
    """Raises UsageError for arguments that no Beam option takes; Beam itself only warns.

    add_described: adds to a parser the options that a job service has described.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = Parser(
        prog="fineshards build", hyphens=False, add_help=False, conflict_handler="resolve"
    )
    pending = PipelineOptions.__subclasses__()
    while pending:
        options = pending.pop()
        pending += options.__subclasses__()
        if "_add_argparse_args" in vars(options):
            options._add_argparse_args(parser)
    add_described(parser)
    _, unknown = parser.parse_known_args(beam_args)
    if unknown:
        ours = [f"--{flag.name}" for flag in flags()]
        parser.refuse(unknown[0], ": neither fineshards nor Beam has it", ours)


def _seconds(text: str) -> int:
    value = count(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return text.lower() == "true"
