"""What a command has found, and the one place that prints it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import to_builtins

from fineshards.errors import OutputError, printable


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has found.

    record: for `--json`. lines: for a person; each stays one line, whatever it quotes.
    exit_code: 0, or 1 for what the command is to report as a failure.
    """

    record: object
    lines: Sequence[str]
    exit_code: int = 0


def show(answer: Answer, as_json: bool = False) -> int:
    """Prints an answer on stdout; returns its exit code."""
    text = "\n".join(map(printable, answer.lines))
    if as_json:
        text = json.dumps(answer.record, default=to_builtins)
    if sys.stdout is None:
        raise OutputError("stdout cannot be written: it is closed.")
    # A terminal may not have all letters of a text.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror}.") from error
    return answer.exit_code


def note(line: str) -> None:
    """Prints a line on stderr, as the log lines that follow it look."""
    with suppress(OSError):  # no one may read it any more
        print(time.strftime("%H:%M:%S"), printable(line), file=sys.stderr, flush=True)


def every_ten_seconds(describe: Callable[[int], str]) -> Callable[[int], None]:
    """Returns a callback that logs progress at most every ten seconds."""
    noted = time.monotonic()

    def report(done: int) -> None:
        nonlocal noted
        if time.monotonic() - noted > 10:
            noted = time.monotonic()
            note(describe(done))

    return report
