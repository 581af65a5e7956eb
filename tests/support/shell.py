"""Commands as lines of a shell, and on a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from support.checkout import ROOT


def in_shell(command: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of shell that calls `fineshards`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def on_terminal(*arguments: object) -> str:
    """The output of the command line on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fineshards", *map(str, arguments)]
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    job = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    assert job.wait() == 0, output.decode()
    return output.decode()
