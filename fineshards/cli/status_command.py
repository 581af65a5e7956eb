"""The command `status`: the progress of a job once, until its end, or as a page."""

from __future__ import annotations

import re
import signal
from argparse import ArgumentTypeError, Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer, note
from fineshards.cli.command import Command, add_flag, add_folder
from fineshards.errors import UsageError
from fineshards.parser import Parser
from fineshards.worker import own_process

_PORT = 8765


def _port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or int(text) > 65535:
        raise ArgumentTypeError(
            f"must be a port, a number up to 65535, got {text!r}. Give the folder first, then "
            "--serve [PORT]"
        )
    return int(text)


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    ways = parser.add_argument_group("how to follow a job; by default, look once")
    way = ways.add_mutually_exclusive_group()
    add_flag(way, "--watch", "Show the progress until the job has finished.")
    add_flag(
        way,
        "--serve PORT",
        "Show it as a page at http://127.0.0.1:PORT, for this machine alone, until Ctrl-C. "
        f"Default: {_PORT}; 0 takes a free port.",
        type=_port,
        nargs="?",
        const=_PORT,
    )


def _status(args: Namespace) -> Answer | int:
    from fineshards.cli.terminal import INTERRUPTED
    from fineshards.job_status.stages import describe_status
    from fineshards.job_status.status import status

    if args.serve is not None:
        if args.json:
            raise UsageError("--serve prints no JSON: the page has it at /status.json.")
        _serve(args.folder, args.serve)
        return 0
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


def _serve(folder: str, port: int) -> None:
    """Serves the page until a signal ends the process."""
    from fineshards.job_status.live import live_server

    with live_server(folder, port) as server:
        note(f"{folder} is shown at {server.address} until Ctrl-C")
        server.serve_forever()


STATUS = Command(
    "status",
    "show the progress of a build, wherever it runs",
    "FOLDER [--watch | --serve [PORT]] [--json]",
    "Shows how far a build is, from the files in its output folder.",
    (
        "fineshards status out",
        "fineshards status out --watch",
        "fineshards status gs://bucket/out --serve",
    ),
    _add_flags,
    _status,
)
