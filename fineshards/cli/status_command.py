"""The command `status`: the progress of a job once, or until its end."""

from __future__ import annotations

import signal
from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer
from fineshards.cli.command import Command, add_flag, add_folder
from fineshards.parser import Parser
from fineshards.worker import own_process


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    add_flag(parser, "--watch", "Show the progress until the job has finished.")


def _status(args: Namespace) -> Answer | int:
    from fineshards.cli.terminal import INTERRUPTED
    from fineshards.job_status.stages import describe_status
    from fineshards.job_status.status import status

    if args.watch:
        try:
            _watch(args.folder)
        except KeyboardInterrupt:  # ends the looking, and not the job
            return INTERRUPTED
    found = status(args.folder)
    return Answer(asdict(found), describe_status(found))


def _watch(folder: str) -> None:
    """Shows the progress of a job until its end."""
    from fineshards.cli.terminal import error_console, set_up_logging
    from fineshards.job_status.progress import follow
    from fineshards.job_status.status import StatusReader
    from fineshards.storage.open import open_storage

    # A table that is being drawn hides the cursor; an exception brings it back.
    own_process.raise_instead(signal.SIGINT)
    console = error_console()
    set_up_logging(console, local=True)
    follow(StatusReader(open_storage(folder)), console)


STATUS = Command(
    "status",
    "show the progress of a build, wherever it runs",
    "FOLDER [--watch] [--json]",
    "Shows how far a build is, from the files in its output folder.",
    (
        "fineshards status out",
        "fineshards status out --watch",
        "fineshards status gs://bucket/out --json",
    ),
    _add_flags,
    _status,
)
