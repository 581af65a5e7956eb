"""The command `repair`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder, add_sources
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    add_flag(
        parser.add_argument_group("what is needed"),
        "--tokenizer PLACE",
        "Where the tokenizer is, if its file in the dataset is damaged. Default: its name.",
    )
    add_sources(parser)


def _repair(args: Namespace) -> Answer:
    from fineshards.maintenance.repair import describe_repaired, repair

    done = repair(args.folder, args.tokenizer, args.sources)
    return Answer(asdict(done), describe_repaired(done), 1 if done.left else 0)


REPAIR = Command(
    "repair",
    "make lost and damaged files of a dataset again, from its sources",
    "FOLDER [--tokenizer PLACE] [--sources OLD=NEW] [--json]",
    "Reads every file of a dataset, and makes those again that are not what the manifest\n"
    "says. Changes nothing unless all of them can be made as they were.",
    ("fineshards repair out",),
    _add_flags,
    _repair,
)
