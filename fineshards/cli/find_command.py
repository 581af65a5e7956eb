"""The command `find`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder_and_generation
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    place = parser.add_argument_group("what to find")
    which = place.add_mutually_exclusive_group(required=True)
    add_flag(which, "--id ID", "All documents with this id.")
    add_flag(
        which, "--token N", "Token N of the dataset, from 0: test shards first, then train shards."
    )


def _find(args: Namespace) -> Answer:
    from fineshards.inspection.find import Found, describe_found, describe_place, find

    found = find(args.folder, id=args.id, token=args.token, generation=args.generation)
    if isinstance(found, Found):
        return Answer(asdict(found), describe_found(found), 0 if found.matches else 1)
    return Answer(asdict(found), describe_place(found))


FIND = Command(
    "find",
    "find a document by its id, or a token by its number",
    "FOLDER (--id ID | --token N) [--json]",
    "Finds the shards that hold a document, and the document that holds a token.\n"
    "Exits with 1 if no document has the id.",
    ("fineshards find out --id 1234", "fineshards find out --token 250000"),
    _add_flags,
    _find,
)
