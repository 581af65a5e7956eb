"""Commands in processes of their own, which may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from support.checkout import ROOT

# Kills itself when the file of this name is about to appear.
_KILLED_BEFORE = """
import os, signal, sys
name = sys.argv.pop(1)
replace = os.replace
def killing(source, target):
    if target.endswith("/" + name):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = killing
from fineshards.cli.cli import main
sys.exit(main())
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs Python with the tests' own modules."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )


def kill(number: int, *command: object) -> None:
    """Runs a command that dies by SIGKILL when it puts its file `number` in place."""
    code = (
        "import sys; from support import crash_driver as c; c.OPERATIONS = ('replace',);"
        f"c.kill_before_operation({number}); c.main(sys.argv[1:])"
    )
    done = run("-c", code, *command)
    assert done.returncode == -signal.SIGKILL, done.stderr


def crashes_of(driver: str, *arguments: object) -> list[dict[str, Any]]:
    """What a driver of this folder found, which kills before one file operation after the other."""
    done = run("-m", f"support.{driver}", *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def kill_before(name: str, *command: object) -> None:
    """Runs a command that dies by SIGKILL when a file of this name is about to appear."""
    done = run("-c", _KILLED_BEFORE, name, *command)
    assert done.returncode == -signal.SIGKILL, done.stderr
