"""The terminal: log lines, and errors that end with one sentence."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable

from rich.console import Console
from rich.logging import RichHandler

from pipeline.failures import explain

INTERRUPTED = 130


def report_errors(action: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit code; whatever goes wrong ends in one sentence."""
    try:
        return action() or 0
    except KeyboardInterrupt:
        print("fineshards: interrupted; the same command continues the job.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (head, less) has seen enough.
        sys.stderr.close()
        return 0
    except Exception as error:
        explained = explain(error)
        if explained is not None:
            print(f"fineshards: {explained}", file=sys.stderr)
            return explained.exit_code
        traceback.print_exc()
        print(
            f"fineshards: failed unexpectedly with {type(error).__name__}; what is finished is "
            "safe, and the same command continues the job. Please report the lines above.",
            file=sys.stderr,
        )
        return 1


def set_up_logging(console: Console, local: bool) -> None:
    """Log lines of the job on the console; of Beam only what a person can act on.

    On this machine Beam's own log repeats, with tracebacks, what ends in our one sentence. On
    other runners it holds the job's address and state.
    """
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, show_level=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("fineshards").setLevel(logging.INFO)
    # What steps say of themselves is for the logs of remote workers; here `watch` tells the same.
    logging.getLogger("fineshards.worker").setLevel(logging.WARNING if local else logging.INFO)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL if local else logging.INFO)
