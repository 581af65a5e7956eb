"""The command `report`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder_and_generation
from fineshards.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("the report")
    add_flag(
        what,
        "--output FILE",
        "The file to write, local, or a URL of gs:// or s3://. Default: NAME-report.html "
        "by the name of the dataset's folder, in the current folder, or beside the dataset if that "
        "is the dataset's own.",
    )
    add_flag(what, "--title TEXT", "Its heading. Default: the dataset's name or folder.")
    add_flag(
        what, "--verify", "Verify the dataset first, and say in the report what was found and when."
    )


def _report(args: Namespace) -> Answer:
    from fineshards.reports.report import describe_report, report

    written = report(
        args.folder,
        output=args.output,
        generation=args.generation,
        verify=args.verify,
        title=args.title,
    )
    return Answer(asdict(written), describe_report(written), int(written.verified is False))


REPORT = Command(
    "report",
    "write a report of a dataset as an HTML page",
    "FOLDER [--output FILE] [--title TEXT] [--verify] [--json]",
    "Writes one HTML file about a finished dataset: splits, lengths, sources, shards, a document\n"
    "with its tokens, and how to load it. It needs no network.",
    ("fineshards report out", "fineshards report out --output out.html --verify"),
    _add_flags,
    _report,
)
