"""The terminal: log lines, progress, and errors that end with one sentence."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fineshards.credentials import masked
from fineshards.errors import printable
from fineshards.pipeline.beam_errors import SHOW_TRACEBACK, describe_unexpected, explain

if TYPE_CHECKING:
    from rich.console import Console

    from fineshards.storage.base import Storage

INTERRUPTED = 130
# How records of Beam begin that say nothing to a person.
_LONG = ("sdk_pipeline_options", "Create job", "   WARNING: Apache Beam", "Error bring", "Really ")


def report_errors(action: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit code; every expected error is one sentence on stderr."""
    if sys.stderr is None:  # closed by the caller; print would write to stdout instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    # Beam warns of what it lacks while it is imported, under no name.
    logging.basicConfig(handlers=[early := logging.StreamHandler()], format="%(message)s")
    early.addFilter(_is_not_of_beam)
    try:
        return action() or 0
    except KeyboardInterrupt:
        print("fineshards: interrupted. Run the same command again to resume.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has closed it.
        sys.stderr.close()
        return 0
    except BaseException as error:
        # A panic of Rust is not an Exception.
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        explained = explain(error)
        if explained is not None:
            print(f"fineshards: {printable(masked(str(explained)))}", file=sys.stderr)
            return explained.exit_code
        if os.environ.get(SHOW_TRACEBACK):
            for line in traceback.format_exc().splitlines():
                print(printable(masked(line)), file=sys.stderr)
        print(f"fineshards: {printable(masked(describe_unexpected(error)))}", file=sys.stderr)
        return 1


def error_console() -> Console:
    """Standard error. It is a terminal only if it can draw, whatever FORCE_COLOR says."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.file.isatty() and not console.is_dumb_terminal:
        return console
    return Console(stderr=True, force_terminal=False)


@contextmanager
def working(storage: Storage, local: bool) -> Iterator[None]:
    """Shows log lines and, for a job on this machine, progress, while the body runs."""
    console = error_console()
    with ExitStack() as stack:
        if local:
            from fineshards.job_status.progress_words import watch
            from fineshards.job_status.status import StatusReader

            stack.enter_context(watch(StatusReader(storage, from_now=True), console))
        set_up_logging(console, local)
        yield


def set_up_logging(console: Console, local: bool) -> None:
    """Sends the job's log lines to the console, and of Beam's only what a person can act on.

    On this machine Beam's log repeats, with tracebacks, the errors that we report in one sentence.
    On other runners it has the job's address and state.
    """
    handler: logging.Handler
    if console.is_terminal:
        from rich.logging import RichHandler

        handler = RichHandler(
            console=console, show_path=False, show_level=False, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(_LogLine("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_LogLine("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    handler.addFilter(_is_not_explained)
    handler.addFilter(_is_not_of_beam)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("fineshards").setLevel(logging.INFO)
    # The steps log for remote workers; on this machine `watch` reports the same.
    logging.getLogger("fineshards.worker").setLevel(logging.WARNING if local else logging.INFO)
    # The summary of a local run has the warnings of Commit.
    logging.getLogger("fineshards.worker.commit").setLevel(logging.ERROR if local else logging.INFO)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL if local else logging.INFO)
    # A worker in this process (--environment_type=LOOPBACK) logs each connection, and its end as an
    # error. The runner reports what fails in it.
    logging.getLogger("apache_beam.runners.worker").setLevel(logging.CRITICAL)
    for name in ("runners.dataflow.internal.apiclient", "utils.subprocess_server"):
        logging.getLogger(f"apache_beam.{name}").addFilter(_is_short)


class _LogLine(logging.Formatter):
    """Lines that show what they quote of the data as it is, but move no cursor.

    A line of ours is one line. One of Beam's may go on, indented, so that none looks like ours.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        text = super().formatMessage(record)
        return printable(text) if record.name.startswith("fineshards") else text

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(map(printable, masked(super().format(record)).split("\n")))


def _is_short(record: logging.LogRecord) -> bool:
    """Whether a record is not one of the longest: all options, or the job as Dataflow has it."""
    return not str(record.msg).startswith(_LONG)


def _is_not_of_beam(record: logging.LogRecord) -> bool:
    """Whether a record is not one that Beam logs under no name, such as of a missing connector."""
    return record.name != "root" or "apache_beam" not in Path(record.pathname).parts


def _is_not_explained(record: logging.LogRecord) -> bool:
    """Whether to show a record: not the traceback of an error that we report in one sentence."""
    raised = record.exc_info[1] if record.exc_info else None
    return explain(raised or RuntimeError(record.getMessage())) is None
