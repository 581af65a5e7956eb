"""Kills a build before each of its file operations in turn, and resumes it.

Runs as a separate process because it forks: modules are imported once, and each build runs in a
child. Prints a JSON list with one entry per crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Every build needs these modules, and children inherit what is imported before the fork.
import apache_beam.runners.portability.fn_api_runner.fn_runner  # noqa: F401
import rich.progress  # noqa: F401

import fineshards.pipeline.graph  # noqa: F401
from fineshards.cli.cli import main
from fineshards.encoders.checked_encoder import ExactEncoder
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from support.encoding import build_inherited_encoder
from support.remembered_specs import remember_specs
from support.watched_encoder import watched_encode

remember_specs()

# A file is written, flushed and renamed, and its folder is flushed. Folders are removed at the end.
OPERATIONS = ("fsync", "replace", "rmdir")


def child(action: Callable[[], int]) -> int:
    """Runs an action in a forked process. Returns its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_before_operation(number: int) -> None:
    """Makes this process die by SIGKILL just before file operation `number`, counted from 0."""
    done = 0

    def wrap(operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return operation(*args, **kwargs)

        return counted

    for name in OPERATIONS:
        setattr(os, name, wrap(getattr(os, name)))


def is_killed(
    number: int, action: Callable[[], int], kill: Callable[[int], None] = kill_before_operation
) -> bool:
    """Whether an action in a forked process is killed before operation `number`, or had fewer."""

    def crash() -> int:
        kill(number)
        return action()

    status = child(crash)
    assert status in (0, -signal.SIGKILL), f"the command ended with {status}"
    return status != 0


def count_encoded_documents(log: Path) -> None:
    """Makes the encoder log the number of documents of each call, without the golden texts."""

    def count(documents: int) -> None:
        with log.open("a") as file:
            file.write(f"{documents}\n")

    ExactEncoder.encode = watched_encode(count)  # type: ignore[method-assign]


def finished_work(output: Path) -> tuple[int, dict[str, int]]:
    """The number of documents in finished blocks, and the inodes of finished shards by name."""
    storage = open_storage(str(output))
    job = Job.load(storage)
    if job is None:
        return 0, {}
    manifest = Manifest.load(storage)
    if manifest is not None:
        names = [shard.name for shard in manifest.shards]
        inodes = {name: os.stat(storage.path(name)).st_ino for name in names}
        return manifest.totals()["documents"], inodes
    checkpoints = Checkpoints.of(storage, job)
    read = checkpoints.blocks.read_runs if job.settings.shuffle else checkpoints.blocks.read_summary
    documents = 0
    for file in job.files:
        for block in checkpoints.discovered.read_blocks(file.index) or []:
            summary = read(block.place)
            documents += summary.counts.documents if summary else 0
    shards = {}
    for entry in storage.entries(f"{checkpoints.folder}/shards"):
        record = checkpoints.read_shard_record(entry.name.rpartition("/")[2].removesuffix(".json"))
        if record is not None:
            shards[record.name] = os.stat(storage.path(record.name)).st_ino
    return documents, shards


def finished_buckets(output: Path) -> dict[str, int]:
    """The inodes of merged runs and buckets that are finished, by name of the mark."""
    return {
        str(path): path.stat().st_ino
        for pattern in ("merged/*.json", "buckets/*-00000.train.parquet")
        for path in output.glob(f"checkpoints/*/{pattern}")
    }


def split_folders(output: Path) -> dict[str, str]:
    """Every file that a reader finds in the split folders, with a hash of its content."""
    return {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for split in ("test", "train")
        for path in (output / split).glob("**/*")
        if path.is_file()
    }


def crash_and_resume(output: Path, flags: list[str], number: int) -> dict[str, Any] | None:
    """Kills a build before operation `number` and resumes it. None if the build had fewer."""
    command = ["build", "--output", str(output), *flags]

    if not is_killed(number, lambda: main(command)):
        return None
    documents, shards = finished_work(output)
    buckets = finished_buckets(output)
    visible = split_folders(output)
    log = output.parent / "encoded"
    log.unlink(missing_ok=True)

    def resume() -> int:
        count_encoded_documents(log)
        return main(command)

    status = child(resume)
    lines = log.read_text().split() if log.exists() else []
    return {
        "operation": number,
        "status": status,
        "documents_finished": documents,
        "documents_encoded": sum(map(int, lines)),
        "changed_after_crash": sorted(visible.items() - split_folders(output).items()),
        "shards_rewritten": [
            name for name, inode in shards.items() if os.stat(output / name).st_ino != inode
        ],
        "buckets_finished": len(buckets),
        "buckets_rewritten": [
            name
            for name, inode in buckets.items()
            if "--keep_checkpoints" in flags and os.stat(name).st_ino != inode
        ],
    }


def run(scratch: Path, first: int, step: int, flags: list[str]) -> None:
    build_inherited_encoder()
    results = []
    number = first
    while True:
        output = scratch / f"crash-{number}"
        result = crash_and_resume(output, flags, number)
        if result is None:
            shutil.rmtree(output)
            break
        results.append(result)
        number += step
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
