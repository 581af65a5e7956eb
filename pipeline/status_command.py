"""The command `status`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fineshards.pipeline.command import Command, add_folder
from fineshards.pipeline.outcome import Outcome, show
from fineshards.pipeline.parser import Parser


def _status(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands.status import describe_status, status

    found = status(args.folder)
    return show(Outcome(asdict(found), describe_status(found)), args.json)


STATUS = Command(
    "status",
    "show the progress of a build, wherever it runs",
    "FOLDER [--json]",
    "Shows how far a build is, from the files in its output folder.",
    ("fineshards status out",),
    add_folder,
    _status,
)
