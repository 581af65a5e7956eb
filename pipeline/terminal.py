"""The terminal: log lines, progress, and errors that end with one sentence."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr
from typing import TYPE_CHECKING, TextIO

from fineshards.pipeline.explain import explain
from fineshards.pipeline.fast_start import without_garbage_collection
from fineshards.storage.temporary import temporary_room

if TYPE_CHECKING:
    from rich.console import Console

    from fineshards.pipeline.runners.choice import RunnerChoice
    from fineshards.storage.base import Storage

INTERRUPTED = 130


def report_errors(action: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit code; every expected error is one sentence on stderr."""
    try:
        return action() or 0
    except KeyboardInterrupt:
        print("fineshards: interrupted. Run the same command again to resume.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has closed it.
        sys.stderr.close()
        return 0
    except Exception as error:
        explained = explain(error)
        if explained is not None:
            print(f"fineshards: {explained}", file=sys.stderr)
            return explained.exit_code
        traceback.print_exc()
        print(
            f"fineshards: unexpected {type(error).__name__}. Finished work is safe; run the same "
            "command again to resume. Please report the lines above.",
            file=sys.stderr,
        )
        return 1


class Terminal:
    """The surroundings of a build on the command line: see `Surroundings` in pipeline/run.py."""

    def __init__(self) -> None:
        self.local = False

    def starting(self) -> AbstractContextManager[None]:
        """Turns garbage collection off."""
        return without_garbage_collection()

    @contextmanager
    def working(self, storage: Storage, runner: RunnerChoice) -> Iterator[None]:
        """Shows log lines and, on this machine, progress."""
        from rich.console import Console

        self.local = runner.local
        with ExitStack() as stack:
            console = Console(stderr=True)
            # Beam's workers in this process print the traceback of every error themselves.
            if runner.in_process:
                console = stack.enter_context(hold_back_stderr())
            if runner.local:
                from fineshards.pipeline.progress import watch
                from fineshards.pipeline.runners.local import patch_runner

                patch_runner()
                stack.enter_context(watch(storage, console))
            set_up_logging(console, runner.local)
            yield


@contextmanager
def hold_back_stderr() -> Iterator[Console]:
    """Yields a console on stderr, and holds back what anything else prints there.

    It is shown at the end if the body fails with an unexpected error.
    """
    from rich.console import Console

    with temporary_room(), tempfile.TemporaryFile("w+", buffering=1, errors="replace") as held:
        saved = os.dup(2)
        shown = sys.stderr
        if _is_descriptor(shown, 2):
            shown = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        os.dup2(held.fileno(), 2)
        explained = True
        try:
            with redirect_stderr(held):
                yield Console(file=shown)
        except Exception as error:
            explained = explain(error) is not None
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if not explained:
                held.seek(0)
                shutil.copyfileobj(held, sys.stderr)


def _is_descriptor(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (AttributeError, OSError):
        return False


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
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    handler.addFilter(_is_not_explained)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("fineshards").setLevel(logging.INFO)
    # The steps log for remote workers; on this machine `watch` reports the same.
    logging.getLogger("fineshards.worker").setLevel(logging.WARNING if local else logging.INFO)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL if local else logging.INFO)
    # A worker in this process (--environment_type=LOOPBACK) logs each connection, and its end as an
    # error. The runner reports what fails in it.
    logging.getLogger("apache_beam.runners.worker").setLevel(logging.CRITICAL)
    logging.getLogger("apache_beam.runners.dataflow.internal.apiclient").addFilter(_is_short)


def _is_short(record: logging.LogRecord) -> bool:
    """Whether a record is not one of the longest: all options, the job as Dataflow has it."""
    return not str(record.msg).startswith(("sdk_pipeline_options", "Create job"))


def _is_not_explained(record: logging.LogRecord) -> bool:
    """Whether to show a record: not the traceback of an error that we report in one sentence."""
    raised = record.exc_info[1] if record.exc_info else None
    return explain(raised or RuntimeError(record.getMessage())) is None
