"""The command `status`: the progress of a job once, or until its end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import asdict

from fineshards.pipeline import own_process
from fineshards.pipeline.command import Command, add_folder
from fineshards.pipeline.outcome import Outcome, show
from fineshards.pipeline.parser import Parser


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    parser.add_argument_group("how to follow a job; by default, look once").add_argument(
        "--watch", action="store_true", help="Show the progress until the job has finished."
    )


def _status(parser: Parser, arguments: Sequence[str]) -> int:
    args = parser.parse_args(arguments)
    from fineshards.commands.stages import describe_status
    from fineshards.commands.status import status
    from fineshards.pipeline.terminal import INTERRUPTED

    if args.watch:
        try:
            _watch(args.folder)
        except KeyboardInterrupt:  # ends the looking, and not the job
            return INTERRUPTED
    found = status(args.folder)
    return show(Outcome(asdict(found), describe_status(found)), args.json)


def _watch(folder: str) -> None:
    """Shows the progress of a job until its end."""
    from rich.console import Console

    from fineshards.commands.status import StatusReader
    from fineshards.pipeline.progress import follow
    from fineshards.pipeline.terminal import set_up_logging
    from fineshards.storage.base import open_storage

    # A table that is being drawn hides the cursor; an exception brings it back.
    own_process.raise_instead(signal.SIGINT)
    console = Console(stderr=True)
    set_up_logging(console, local=True)
    follow(StatusReader(open_storage(folder)), console)


STATUS = Command(
    "status",
    "show the progress of a build, wherever it runs",
    "FOLDER [--watch] [--json]",
    "Shows how far a build is, from the files in its output folder.",
    ("fineshards status out", "fineshards status out --watch"),
    _add_flags,
    _status,
)
