"""The command `stats`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder_and_generation
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    shown = parser.add_argument_group("what is shown; by default, all")
    add_flag(shown, "--step N", "What step N of the recipe, from 1, finds and drops.")
    add_flag(shown, "--where SQL", "How many documents satisfy a condition on their scores.")
    add_flag(shown, "--column NAME", "Values of a column of the sources, a score, id or file.")
    add_flag(shown, "--top N", "How many values of the column. Default: 10.", default=10)


def _stats(args: Namespace) -> Answer:
    from fineshards.inspection.stats import describe_stats, stats

    found = stats(args.folder, args.step, args.generation, args.where, args.column, args.top)
    return Answer(asdict(found), describe_stats(found))


STATS = Command(
    "stats",
    "show the statistics of a dataset and of the steps of its recipe",
    "FOLDER [--step N | --where SQL | --column NAME] [--json]",
    "Shows what each step found and dropped, and the dataset's documents by length, language\n"
    "and dump. They are counted where documents pass steps, and with --statistics.\n"
    "--column counts the values of any column, and of url the hosts; it reads the sources.",
    (
        "fineshards stats out",
        "fineshards stats out --step 2",
        "fineshards stats out --column url",
        "fineshards stats out --where 'quality > 0.5'",
    ),
    _add_flags,
    _stats,
)
