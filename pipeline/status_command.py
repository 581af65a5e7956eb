"""`fineshards status`: the progress of a job once, until its end, or as a page."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import asdict

from fineshards.errors import UsageError
from fineshards.pipeline import own_process
from fineshards.pipeline.outcome import Outcome, note, show
from fineshards.pipeline.parser import Parser
from fineshards.pipeline.quantities import count
from fineshards.pipeline.terminal import INTERRUPTED, set_up_logging

_PORT = 8765


def add_status_flags(parser: Parser) -> None:
    """Adds the flags of `status`."""
    ways = parser.add_argument_group("how to follow a job; by default, look once")
    way = ways.add_mutually_exclusive_group()
    way.add_argument(
        "--watch", action="store_true", help="Show the progress until the job has finished."
    )
    way.add_argument(
        "--serve",
        type=count,
        nargs="?",
        const=_PORT,
        metavar="PORT",
        help="Show it as a page on http://127.0.0.1:PORT, for this machine alone, until Ctrl-C. "
        f"Default: {_PORT}; 0 takes a free one.",
    )


def run_status(parser: Parser, arguments: Sequence[str]) -> int:
    """Shows the progress of a job; returns the exit code."""
    args = parser.parse_args(arguments)
    if args.serve is not None and args.json:
        raise UsageError("--serve prints no JSON: the page has it at /status.json.")
    from fineshards.commands.stages import describe_status
    from fineshards.commands.status import status

    # Ctrl-C ends only the looking, which is no failure of the job.
    own_process.raise_instead(signal.SIGINT)
    try:
        if args.serve is not None:
            return _serve(args.folder, args.serve)
        if args.watch:
            _watch(args.folder)
    except KeyboardInterrupt:
        return INTERRUPTED
    found = status(args.folder)
    return show(Outcome(asdict(found), describe_status(found)), args.json)


def _watch(folder: str) -> None:
    from rich.console import Console

    from fineshards.commands.status import StatusReader
    from fineshards.pipeline.progress import follow
    from fineshards.storage.base import open_storage

    console = Console(stderr=True)
    set_up_logging(console, local=True)
    follow(StatusReader(open_storage(folder)), console)


def _serve(folder: str, port: int) -> int:
    from fineshards.pages.live import live_server

    with live_server(folder, port) as server:
        note(f"{folder} is shown at {server.address} until Ctrl-C")
        server.serve_forever()
    return 0
