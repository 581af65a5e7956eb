"""What a command has found, and the one place that prints it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fineshards.printable import printable


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command has found.

    record: for `--json`. lines: for a person; each stays one line, whatever it quotes.
    exit_code: 0, or 1 for what the command is to report as a failure.
    """

    record: Mapping[str, object]
    lines: Sequence[str]
    exit_code: int = 0


def show(outcome: Outcome, as_json: bool = False) -> int:
    """Prints an outcome on stdout; returns its exit code."""
    if as_json:
        print(json.dumps(outcome.record))
    else:
        print("\n".join(map(printable, outcome.lines)))
    # A reader that is gone is noticed here, not while the process ends.
    sys.stdout.flush()
    return outcome.exit_code


def note(line: str) -> None:
    """Prints a line on stderr, as the log lines that follow it look."""
    print(time.strftime("%H:%M:%S"), printable(line), file=sys.stderr, flush=True)
