"""The arguments that are Beam's: which runner they name, and whether Beam knows them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from fineshards.config import BuildConfig, flags
from fineshards.parser import Parser

# Runners whose job service has options of its own: pipeline/runners/portable.py.
_DESCRIBED = frozenset({"flink", "portable", "spark"})


def launches_template(config: BuildConfig) -> bool:
    """Whether this is a template's launcher: Dataflow waits for a job file from it."""
    return any(arg.split("=")[0] == "--template_location" for arg in config.beam_args)


def runner_name(beam_args: Sequence[str]) -> str:
    """The runner that is asked for, in lower case and without `runner`; empty if there is none."""
    words = [word for arg in beam_args for word in arg.split("=", 1)]
    runner = dict(pairwise(words)).get("--runner", "")
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def check_beam_args(config: BuildConfig, command: str = "fineshards build") -> None:
    """Raises UsageError for an argument that is not Beam's, if Beam itself can tell.

    command: whose help page the message names.
    """
    # What a template is given has been checked by Dataflow, which may add flags of its own.
    described = launches_template(config) or runner_name(config.beam_args) in _DESCRIBED
    if config.beam_args and not described:
        refuse_unknown(config.beam_args, command=command)


def refuse_unknown(
    beam_args: Sequence[str],
    add_described: Callable[[Any], None] = lambda parser: None,
    command: str = "fineshards build",
) -> None:
    """Raises UsageError for arguments that no Beam option takes; Beam itself only warns.

    add_described: adds to a parser the options that a job service has described.
    """
    parser = _parser(command)
    add_described(parser)
    _, unknown = parser.parse_known_args(beam_args)
    if unknown:
        ours = [f"--{flag.name}" for flag in flags()]
        parser.refuse(unknown[0], ": neither fineshards nor Beam has it", ours)


def is_beams(flag: str) -> bool:
    """Whether Beam itself, not a job service, has a flag."""
    can_be_imported = find_spec("apache_beam") is not None and sys.flags.optimize < 2
    return can_be_imported and flag in _parser("")._option_string_actions


def _parser(command: str) -> Parser:
    """A parser of all options that Beam has."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = Parser(prog=command, hyphens=False, add_help=False, conflict_handler="resolve")
    pending = PipelineOptions.__subclasses__()
    while pending:
        options = pending.pop()
        pending += options.__subclasses__()
        if "_add_argparse_args" in vars(options):
            options._add_argparse_args(parser)
    return parser
