"""What a person sees of a local run: a bar on a terminal, a log line a stage anywhere.

It watches the output folder from a thread of the launching process, so it needs nothing from the
runner and shows the same whatever the running mode.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fineshards.commands.status import Status, StatusReader, duration
from fineshards.errors import FineshardsError
from fineshards.storage.base import Storage

_log = logging.getLogger("fineshards")
_POLL_SECONDS = 0.5


@contextmanager
def watch(storage: Storage, console: Console) -> Iterator[None]:
    """Shows progress while the body runs."""
    reader = StatusReader(storage)
    start = reader.read()
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(reader, start, console, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _watch(reader: StatusReader, start: Status, console: Console, stop: threading.Event) -> None:
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    clock = progress.get_time
    began = clock()
    told: set[str] = set()
    with progress:
        bar = progress.add_task("discover", total=None, detail="")
        last, took = False, 0.0
        while not last:
            # A listing of a million blocks takes its time, and should not be all that goes on.
            last = stop.wait(max(_POLL_SECONDS, 10 * took))
            asked = time.monotonic()
            try:
                status = reader.read()
            except FineshardsError:
                continue  # the folder is being changed under us; the job itself will say so
            finally:
                took = time.monotonic() - asked
            _tell(status, told)
            if status.stage != "finished":
                _draw(progress, bar, start, status, clock() - began)


def _tell(status: Status, told: set[str]) -> None:
    """Logs each stage once, when it is over: also those that were too short to be seen."""

    def once(stage: str, message: str) -> None:
        if stage not in told:
            told.add(stage)
            _log.info("%s: %s", stage, message)

    if status.stage == "discovering":
        return
    once("discover", f"{status.files_total:,} files, {status.blocks_total:,} blocks")
    if status.stage != "tokenizing":
        once("tokenize", f"{status.blocks:,} blocks, {status.tokens:,} tokens")
        once("plan", f"{status.shards_total:,} shards")
    if status.stage == "finished":
        once("write", f"{status.shards:,} shards")
        once("commit", "the manifest")


def _draw(progress: Progress, bar: TaskID, start: Status, status: Status, elapsed: float) -> None:
    if status.stage == "tokenizing":
        rate = (status.tokens - start.tokens) / max(elapsed, 1e-9)
        new_bytes = status.text_bytes - start.text_bytes
        left = ""
        if new_bytes > 0 and status.text_bytes_total is not None:
            seconds = (status.text_bytes_total - status.text_bytes) * elapsed / new_bytes
            left = f", {duration(seconds)} left"
        detail = (
            f"{status.blocks:,}/{status.blocks_total:,} blocks, {rate / 1e6:.2f}M tokens/s{left}"
        )
        total, done = status.text_bytes_total, status.text_bytes
    elif status.stage == "writing":
        detail = f"{status.shards:,}/{status.shards_total:,} shards"
        total, done = status.shards_total, status.shards
    else:
        detail, total, done = f"{status.files:,}/{status.files_total:,} files", None, 0
    description = {"tokenizing": "tokenize", "writing": "write"}.get(status.stage, "discover")
    progress.update(bar, description=description, total=total, completed=done, detail=detail)
