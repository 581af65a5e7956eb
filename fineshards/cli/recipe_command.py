"""`fineshards recipe`: shows recipes and steps, and tries a recipe on a probe of the input."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from dataclasses import asdict

from fineshards.cli.answer import Answer, note
from fineshards.cli.command import Command, add_flag
from fineshards.cli.options import add_input_and_step_flags, input_and_steps
from fineshards.errors import UsageError
from fineshards.number_parser import byte_count
from fineshards.parser import Parser, one_of
from fineshards.pipeline.recipe_flags import recipe_shown


def _add_flags(parser: Parser) -> None:
    what = parser.add_argument_group("what to do")
    actions = list(_ACTIONS)
    what.add_argument(
        "action",
        type=one_of(actions),
        choices=actions,
        metavar="show|steps|check",
        help="See above.",
    )
    what.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="show: a recipe's name or file, or the folder of a dataset. steps: a step, to see its "
        "parameters. check: a recipe's name or file.",
    )
    add_flag(
        parser.add_argument_group("show"),
        "--all",
        "Of a dataset, also the parameters that have their default.",
        default=argparse.SUPPRESS,
    )
    check = parser.add_argument_group("check")
    add_flag(
        check,
        "--probe_bytes SIZE",
        "Text that the recipe is tried on. Default: 32 MiB.",
        type=byte_count,
        default=argparse.SUPPRESS,
    )
    add_flag(
        check,
        "--examples N",
        "Documents to show that each step drops, and that it changes. Default: 2.",
        default=argparse.SUPPRESS,
    )
    add_input_and_step_flags(parser)


def _recipe(args: argparse.Namespace) -> Answer:
    given = set(vars(args)) - {"action", "name", "json"}
    for name in sorted(given):
        # All flags but one are those of check.
        if args.action != ("show" if name == "all" else "check"):
            raise UsageError(f"fineshards recipe {args.action} does not take --{name}.")
    return _ACTIONS[args.action](args)


def _show(args: argparse.Namespace) -> Answer:
    from fineshards.pipeline.recipe_flags import shipped_recipes

    if args.name is None:
        names = ", ".join(shipped_recipes())
        raise UsageError(f"give a recipe, by file or name ({names}), or the folder of a dataset.")
    text = recipe_shown(args.name, hasattr(args, "all"))
    return Answer({"toml": text, **tomllib.loads(text)}, text.rstrip("\n").split("\n"))


def _steps(args: argparse.Namespace) -> Answer:
    from fineshards.curation.step_docs import (
        describe_parameters,
        describe_step,
        describe_steps,
        step_names,
    )

    if args.name is not None:
        step = describe_step(args.name)
        return Answer(asdict(step), describe_parameters(step))
    steps = [describe_step(name) for name in step_names()]
    return Answer({"steps": [asdict(step) for step in steps]}, describe_steps(steps))


def _check(args: argparse.Namespace) -> Answer:
    config = input_and_steps(args, args.name)
    from fineshards.inspection.recipe_check import describe_check
    from fineshards.pipeline.functions import EXAMPLES, PROBE_BYTES, check

    if config.curates:  # if not, `check` says so
        note("reading a probe of the input …")
    probe_bytes = getattr(args, "probe_bytes", PROBE_BYTES)
    found = check(config, probe_bytes, getattr(args, "examples", EXAMPLES))
    return Answer(asdict(found), describe_check(found))


_ACTIONS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "show": _show,
    "steps": _steps,
    "check": _check,
}

RECIPE = Command(
    "recipe",
    "show recipes and their steps, and try them on a probe of the input",
    "show NAME | steps [NAME] | check NAME --input FILE... [flags]",
    "show prints a recipe as TOML: one that fineshards has, a file, or that of a dataset.\n"
    "steps lists what recipes are made of, and shows the parameters of a step.\n"
    "check runs a recipe over a probe of the input, and shows what each step keeps and drops.\n"
    "It writes nothing.",
    (
        "fineshards recipe show fineweb > recipe.toml",
        "fineshards recipe steps minhash",
        "fineshards recipe check recipe.toml --input data/*.parquet",
        "fineshards recipe check --where 'language_score > 0.9' --dedup exact "
        "--input data/*.parquet",
    ),
    _add_flags,
    _recipe,
)
