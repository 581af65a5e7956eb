"""Kills a command before its file operations in turn, touches its input, and resumes it.

Runs as a separate process because it forks, as `crash_driver`. Prints a JSON list with one entry
per crash.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from fineshards.cli.cli import main
from support import crash_driver
from support.crash_driver import (
    child,
    count_encoded_documents,
    finished_work,
    is_killed,
)
from support.encoding import build_inherited_encoder
from support.oracle import files_in

# An append also claims its generation by a link.
crash_driver.OPERATIONS = ("replace", "rmdir", "link")


def set_times(folder: Path, time: int) -> None:
    """Gives all files below a folder a time, in seconds."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time, time))


def run(scratch: Path, step: int, command: list[str]) -> None:
    """Resumes what is in `scratch/out`; each time from `scratch/before`, to `scratch/whole`.

    All input is in `scratch/in`.
    """
    build_inherited_encoder()
    output, log, results = scratch / "out", scratch / "encoded", []
    whole = files_in(scratch / "whole")
    for number in range(0, 1 << 20, step):
        shutil.rmtree(output, ignore_errors=True)
        if (scratch / "before").exists():
            shutil.copytree(scratch / "before", output)
        set_times(scratch / "in", 1)
        if not is_killed(number, lambda: main(command)):
            break
        documents, _ = finished_work(output)
        log.unlink(missing_ok=True)

        def resume() -> int:
            count_encoded_documents(log)
            return main(command)

        statuses = []
        for time in (2, 3):  # the second finds it finished
            set_times(scratch / "in", time)
            statuses.append(child(resume))
        now = files_in(output)
        results.append(
            {
                "operation": number,
                "statuses": statuses,
                "finished": documents,
                "encoded": sum(map(int, log.read_text().split())) if log.exists() else 0,
                "other": sorted(
                    name for name in {*now, *whole} if now.get(name) != whole.get(name)
                ),
            }
        )
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
