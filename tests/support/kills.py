"""Commands that die by SIGKILL at a named stop: see `crash_driver`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.checkout import ROOT
from support.crash_driver import read
from support.growing import published_files


def kill(stop: str, *command: object, workers: bool = False) -> None:
    """Runs a command that dies at a stop. workers: with worker processes, as users run it."""
    done = _drive({"stop": stop, "command": [*map(str, command)], "workers": workers})
    assert done.returncode == -signal.SIGKILL, done.stderr


def crashes_of(
    folder: Path,
    command: list[str],
    first: int = 0,
    step: int = 1,
    workers: bool = False,
    look: str = "support.crash_driver:read",
) -> list[dict[str, Any]]:
    """Kills a command before one file operation after the other, and resumes it each time.

    command: with OUT in place of the folder in which it runs. That is `folder/crash-NUMBER`, where
    the results stay; a copy of `folder/before`, if there is one. look: a function of that folder,
    as MODULE:NAME, called after the kill and after the resume.
    """
    given = {"folder": str(folder), "command": command, "first": first, "step": step}
    done = _drive({**given, "workers": workers, "look": look})
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def check_appends(folder: Path, crashes: list[dict[str, Any]]) -> None:
    """After each kill a dataset is whole, `before` or `after`; at the end it is `after`."""
    wholes = [read(folder / name) for name in ("before", "after")]
    for crash in crashes:
        assert crash["seen"] in wholes, crash
        assert (crash["status"], crash["seen_after"]) == (0, wholes[1]), crash
        dataset = Path(crash["folder"])
        assert published_files(dataset) == published_files(folder / "after"), crash
        assert not (dataset / "checkpoints").exists(), crash


def _drive(given: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "support.crash_driver", json.dumps(given)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
