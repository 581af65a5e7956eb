"""`fineshards recipe`: shows recipes and steps, and tries a recipe on a sample of the input."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable

from fineshards.cli.answer import Answer, note
from fineshards.cli.command import Command, add_flag
from fineshards.cli.options import add_input_and_step_flags, sample_config
from fineshards.errors import UsageError
from fineshards.parser import Parser, one_of
from fineshards.pipeline.recipe_flags import recipe_shown


def _add_flags(parser: Parser) -> None:
    what = parser.add_argument_group("what to do")
    actions, spelled = list(_ACTIONS), "|".join(_ACTIONS)
    what.add_argument(
        "action", type=one_of(actions), choices=actions, metavar=spelled, help="See above."
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
        "--examples N",
        "Documents to show that each step drops or cuts. Default: 2.",
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
    from fineshards.curation import step_docs

    if args.name is not None:
        step = step_docs.describe_step(args.name)
        return Answer(step, step_docs.describe_parameters(step))
    steps = [step_docs.describe_step(name) for name in step_docs.step_names()]
    return Answer({"steps": steps}, step_docs.describe_steps(steps))


def _check(args: argparse.Namespace) -> Answer:
    config = sample_config(args, recipe=args.name)
    from fineshards.pipeline.sample import check

    if config.curates:  # if not, `check` says so
        note("building a sample of the input …")
    found = check(config, getattr(args, "examples", 2))
    return Answer(found, str(found).splitlines())


_ACTIONS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "show": _show,
    "steps": _steps,
    "check": _check,
}

RECIPE = Command(
    "recipe",
    "show recipes and their steps, and try them on a sample of the input",
    "show NAME | steps [NAME] | check NAME --input FILE... [flags]",
    "show prints a recipe as TOML: one that fineshards has, a file, or that of a dataset.\n"
    "steps lists what recipes are made of, and shows the parameters of a step.\n"
    "check builds a sample of the input, about 64 MB of text, with a recipe, in a temporary\n"
    "folder. It shows what each step keeps and drops, with examples, and leaves nothing.",
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
