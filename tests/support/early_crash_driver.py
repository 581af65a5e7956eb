"""Kills a command and its workers before each of their file operations in turn, and resumes it.

As `crash_driver`, but with worker processes, which write shards while blocks are tokenized; all
their operations are counted together. Prints a JSON list with one entry per crash.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fineshards.cli.cli import main
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.verification.verify import verify
from fineshards.worker import own_process
from support.crash_driver import (
    child,
    count_encoded_documents,
    finished_work,
    is_killed,
    split_folders,
)
from support.encoding import build_inherited_encoder
from support.growing import content_of

_OPERATIONS = ("fsync", "replace", "unlink", "rmdir", "link")


def kill_all_before_operation(number: int) -> None:
    """Makes this process and its children die by SIGKILL before file operation `number`."""
    os.setsid()
    done = multiprocessing.Value("i", 0)

    def wrap(operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with done.get_lock():
                if done.value == number:
                    os.killpg(0, signal.SIGKILL)
                done.value += 1
            return operation(*args, **kwargs)

        return counted

    for name in _OPERATIONS:
        setattr(os, name, wrap(getattr(os, name)))


def _run(command: list[str]) -> int:
    own_process.claim()
    return main(command)


def crash_and_resume(folder: Path, command: list[str], number: int) -> dict[str, Any] | None:
    """Kills a command before operation `number` and resumes it. None if it had fewer."""
    if not is_killed(number, lambda: _run(command), kill_all_before_operation):
        return None
    documents, shards = finished_work(folder)
    records = [path.stem for path in folder.glob("checkpoints/*/shards/*.json")]
    dropped = [path.name for path in folder.glob("checkpoints/*/blocks/*.written.json")]
    visible = split_folders(folder)
    is_dataset = (folder / MANIFEST_NAME).exists()
    problems = verify(folder, generation=1).problems if is_dataset else []
    log = folder.parent / "encoded"
    log.unlink(missing_ok=True)

    def resume() -> int:
        count_encoded_documents(log)
        return _run(command)

    status = child(resume)
    now = split_folders(folder)
    return {
        "operation": number,
        "status": status,
        "documents_finished": documents,
        "documents_encoded": sum(map(int, log.read_text().split())) if log.exists() else 0,
        "changed_after_crash": [name for name in visible if visible[name] != now.get(name)],
        "shards_rewritten": [
            name for name, inode in shards.items() if os.stat(folder / name).st_ino != inode
        ],
        "problems": problems,
        "shards_finished": len(records),
        "blocks_dropped": len(dropped),
    }


def run(scratch: Path, first: int, step: int, command: list[str]) -> None:
    """Runs in copies of `scratch/before`; `scratch/after` is what each is to become.

    command: with FOLDER where the folder is to stand.
    """
    build_inherited_encoder()
    expected = content_of(scratch / "after")
    results = []
    number = first
    while True:
        folder = scratch / "killed"
        shutil.copytree(scratch / "before", folder)
        given = [argument.replace("FOLDER", str(folder)) for argument in command]
        result = crash_and_resume(folder, given, number)
        if result is not None:
            result["same"] = content_of(folder) == expected
            result["left"] = (folder / "checkpoints").exists()
            results.append(result)
        shutil.rmtree(folder)
        if result is None:
            break
        number += step
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
