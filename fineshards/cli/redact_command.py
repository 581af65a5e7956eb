"""The command `redact`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder
from fineshards.errors import UsageError
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    which = parser.add_argument_group("which documents")
    add_flag(which, "--ids FILE", "A file of ids, one per line.")
    add_flag(
        which,
        "--documents N",
        "Documents by their numbers in the dataset, which inspect and find show.",
        nargs="+",
        action="extend",
        default=[],
    )


def _redact(args: Namespace) -> Answer:
    from fineshards.maintenance.redact import describe_redacted, read_ids, redact

    if args.ids is None and not args.documents:
        raise UsageError("give --ids, a file of ids, or --documents, their numbers.")
    ids = [] if args.ids is None else read_ids(args.ids)
    done = redact(args.folder, ids, args.documents)
    return Answer(asdict(done), describe_redacted(done))


REDACT = Command(
    "redact",
    "overwrite documents in place, as a new generation",
    "FOLDER (--ids FILE | --documents N...) [--json]",
    "Overwrites the tokens of documents with the end-of-text token. Nothing moves: shards\n"
    "keep their length, and the state of a training stays valid. It cannot be undone.",
    ("fineshards redact out --ids ids.txt", "fineshards redact out --documents 17 2305"),
    _add_flags,
    _redact,
)
