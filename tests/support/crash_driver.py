"""Runs a command that dies by SIGKILL at a named stop, with its workers; or at many, and resumes.

A program of its own because it forks: modules are imported once, and each run is a child. Its
argument is JSON, as `kills` writes it. What it finds at many stops it prints as JSON.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

# Every build needs these modules, and children inherit what is imported before the fork.
import apache_beam.runners.portability.fn_api_runner.fn_runner  # noqa: F401
import rich.progress  # noqa: F401

import fineshards.pipeline.graph  # noqa: F401
from fineshards.cli.cli import main
from fineshards.encoders.gigatoken.exact_encoder import ExactEncoder
from fineshards.loader.token_dataset import TokenDataset
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage
from fineshards.verification.verify import verify
from fineshards.worker import own_process
from support.encoding import build_inherited_encoder
from support.growing import tokens_in
from support.remembered_specs import remember_specs
from support.watched_encoder import watched_encode

# A file is written, flushed and renamed, and its folder is flushed. Folders are removed at the end.
# An append claims its generation by a link.
OPERATIONS = ("fsync", "replace", "rmdir", "link", "unlink")


def die_at(stop: str) -> None:
    """Makes this process and its children die by SIGKILL just before a file operation.

    stop: OPERATION:WHICH. The operation is one of the above, or `any`. Which is its number, counted
    from 0 in all processes together, or the name of the file that it makes.
    """
    if os.getpgrp() != os.getpid():
        os.setsid()
    kind, _, which = stop.partition(":")
    done = multiprocessing.Value("i", 0)

    def wrap(operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with done.get_lock():
                if which == str(done.value) or str(args[-1]).endswith(f"/{which}"):
                    os.killpg(0, signal.SIGKILL)
                done.value += 1
            return operation(*args, **kwargs)

        return counted

    for name in OPERATIONS if kind == "any" else (kind,):
        setattr(os, name, wrap(getattr(os, name)))


def run(command: list[str], workers: bool) -> int:
    """Runs a command. workers: as the process of a user's command, which forks workers."""
    if workers:
        own_process.alone = True
    return main(command)


def child(action: Callable[[], int]) -> int:
    """Runs an action in a forked process. Returns its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(action())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def answer(action: Callable[[], object], scratch: Path) -> Any:
    """What an action in a forked process returns, as JSON."""

    def write() -> int:
        scratch.write_text(json.dumps(action()))
        return 0

    assert child(write) == 0, "the reader died"
    return json.loads(scratch.read_text())


def count_encoded_documents(log: Path) -> None:
    """Makes the encoder log the number of documents of each call, without the golden texts."""

    def count(documents: int) -> None:
        with log.open("a") as file:
            file.write(f"{documents}\n")

    ExactEncoder.encode = watched_encode(count)  # type: ignore[method-assign]


def finished_work(output: Path) -> tuple[int, dict[str, int]]:
    """The number of documents in finished blocks, and the inodes of finished files by name.

    The files are shards, and marks of buckets.
    """
    storage = open_storage(str(output))
    job = Job.load(storage)
    if job is None:
        return 0, {}
    manifest = Manifest.load(storage)
    if manifest is not None:
        names, documents = [shard.name for shard in manifest.shards], manifest.totals["documents"]
    else:
        checkpoints = Checkpoints.of(storage, job)
        found = [
            checkpoints.blocks.read_summary(block.place)
            for file in job.files
            for block in checkpoints.read_blocks(file.index) or []
        ]
        documents = sum(summary.counts.documents for summary in found if summary)
        marks = [Path(entry.name).stem for entry in storage.entries(f"{checkpoints.folder}/shards")]
        shards = [f"{mark.partition('_')[0]}/{mark}.npy" for mark in marks]
        records = map(checkpoints.finished_shard, shards)
        names = [record.name for record in records if record is not None]
    buckets = output.glob("checkpoints/*/buckets/*.json")
    names += [str(path.relative_to(output)) for path in buckets]
    return documents, {name: os.stat(output / name).st_ino for name in names}


def split_folders(output: Path) -> dict[str, str]:
    """Every file that a reader finds in the split folders, with a hash of its content."""
    return {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for split in ("test", "train")
        for path in (output / split).glob("**/*")
        if path.is_file()
    }


def read(folder: Path) -> dict[str, Any]:
    """What is wrong with the generations of a dataset, and what the loader reads of each."""
    manifest = Manifest.load(open_storage(str(folder)))
    generations = range(1, manifest.generation + 1 if manifest else 1)
    problems, tokens = [], []
    for generation in generations:
        problems += verify(folder, generation=generation).problems
        for split in filter(lambda split: (folder / split).is_dir(), ("test", "train")):
            opened = TokenDataset(folder, split, sequence_length=1, generation=generation)
            opened.documents(len(opened) - 1)
            tokens.append(hashlib.sha256(str(tokens_in(opened)).encode()).hexdigest())
    return {"problems": problems, "tokens": tokens}


def crash_and_resume(
    output: Path, command: list[str], number: int, workers: bool, look: Callable[[Path], object]
) -> dict[str, Any] | None:
    """Kills a command before operation `number` and resumes it. None if it had fewer."""

    def crash() -> int:
        die_at(f"any:{number}")
        return run(command, workers)

    killed = child(crash)
    assert killed in (0, -signal.SIGKILL), f"the command ended with {killed}"
    if killed == 0:
        return None
    documents, files = finished_work(output)
    visible = split_folders(output)
    log, scratch = (output.with_name(f"{output.name}.{end}") for end in ("encoded", "seen"))
    seen = answer(lambda: look(output), scratch)

    def resume() -> int:
        count_encoded_documents(log)
        return run(command, workers)

    status = child(resume)
    return {
        "folder": str(output),
        "status": status,
        "seen": seen,
        "seen_after": answer(lambda: look(output), scratch),
        "finished": [*files],
        "documents_finished": documents,
        "documents_encoded": sum(map(int, log.read_text().split())) if log.exists() else 0,
        "changed": sorted(visible.items() - split_folders(output).items()),
        "rewritten": [
            name
            for name, inode in files.items()
            if (output / name).exists() and os.stat(output / name).st_ino != inode
        ],
    }


def sweep(
    folder: Path, command: list[str], first: int, step: int, workers: bool, look: str
) -> list[dict[str, Any]]:
    """Kills a command at one operation after the other, each time in a folder of its own."""
    build_inherited_encoder()
    results, number = [], first
    while True:
        output = folder / f"crash-{number}"
        if (folder / "before").exists():
            shutil.copytree(folder / "before", output)
        given = [word.replace("OUT", str(output)) for word in command]
        result = crash_and_resume(output, given, number, workers, resolve_name(look))
        if result is None:
            return results
        results.append(result)
        number += step


if __name__ == "__main__":
    remember_specs()
    arguments = json.loads(sys.argv[1])
    if "stop" in arguments:
        die_at(arguments["stop"])
        sys.exit(run(arguments["command"], arguments["workers"]))
    json.dump(sweep(**{**arguments, "folder": Path(arguments["folder"])}), sys.stdout)
