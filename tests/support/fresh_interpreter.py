"""Programs in a fresh interpreter, to test limits, memory, imports and exit of a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run_program(
    program: str, *arguments: object, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs Python source that may import the project. Does not check the exit code."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def tell_many(told: Path, tell: Callable[[int], None]) -> str:
    """Tells a hundred numbers, then makes a file."""
    for number in range(100):
        tell(number)
    told.touch()
    return "done"
