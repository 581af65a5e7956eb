"""Commands as lines of a shell."""

import os
import subprocess
import sys
from pathlib import Path


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
