"""Commands in processes of their own, which may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.checkout import ROOT


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
