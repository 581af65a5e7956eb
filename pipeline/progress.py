"""The progress of a local run: a bar on a terminal, and one log line per stage everywhere.

A thread of the launching process watches the output folder. So progress needs nothing from the
runner, and looks the same in every running mode.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from fineshards.commands.status import Status, StatusReader
from fineshards.commands.wording import counted, duration
from fineshards.errors import FineshardsError
from fineshards.storage.base import Storage

_log = logging.getLogger("fineshards")
_POLL_SECONDS = 0.5
# Without a terminal, and so without a bar, a line says this often how far the job is.
_LINE_SECONDS = 60
# How long the end of a build waits for the last look at the output folder.
_LAST_LOOK_SECONDS = 2.0
_STAGES = {
    "discovering": "reading files",
    "judging": "judging",
    "tokenizing": "tokenizing",
    "writing": "writing shards",
}


@contextmanager
def watch(storage: Storage, console: Console) -> Iterator[None]:
    """Shows progress while the body runs. Its end does not wait for a server that is stalled."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    watcher = _Watcher(StatusReader(storage), progress, console)
    with progress:
        threading.Thread(target=watcher.run, daemon=True).start()
        try:
            yield
        finally:
            watcher.end()


class _Watcher:
    """Looks at the output folder again and again, in a thread of its own."""

    def __init__(self, reader: StatusReader, progress: Progress, console: Console) -> None:
        self._reader = reader
        self._progress = progress
        self._lines = not console.is_terminal
        self._bar = progress.add_task(_STAGES["discovering"], total=None, detail="")
        # The first look: reading the state of a large job may take long.
        self._start: Status | None = None
        self._began = time.monotonic()
        self._next_line = self._began + _LINE_SECONDS
        self._logged: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._over = False

    def run(self) -> None:
        """Looks until the end."""
        took = 0.0
        # Listing a million blocks takes long, so it is done less often then.
        while not self._stop.wait(max(_POLL_SECONDS, 10 * took)):
            began = time.monotonic()
            self._look()
            took = time.monotonic() - began

    def end(self) -> None:
        """Looks for the last time, but not for long, and shows nothing from then on.

        In another thread, because the first one may be in the middle of retries, which take
        minutes. A look that is not done by now is left alone; the process may end without it.
        """
        self._stop.set()
        last = threading.Thread(target=self._look, daemon=True)
        last.start()
        last.join(_LAST_LOOK_SECONDS)
        with self._lock:
            self._over = True

    def _look(self) -> None:
        try:
            status = self._reader.read(added=True)
        except FineshardsError:
            return  # the folder is being changed; the job itself will report it
        with self._lock:
            if self._over:
                return
            _log_stages(status, self._logged)
            if status.stage == "finished":
                return
            now = time.monotonic()
            if self._start is None:
                self._start, self._began = status, now
            detail, total, done = _measure(self._start, status, now - self._began)
            stage = _STAGES[status.stage]
            self._progress.update(
                self._bar, description=stage, total=total, completed=done, detail=detail
            )
            if self._lines and now >= self._next_line:
                self._next_line = now + _LINE_SECONDS
                _log.info("%s: %s", stage, detail)


def _log_stages(status: Status, logged: set[str]) -> None:
    """Logs every stage once, when it is over, even if it was too short to be seen.

    logged: the stages logged so far; changed in place.
    """

    def once(stage: str, message: str) -> None:
        if stage not in logged:
            logged.add(stage)
            _log.info("%s", message)

    if status.stage == "discovering":
        return
    # Totals are known from here on.
    files, blocks = counted(status.files_total, "file"), counted(status.blocks_total or 0, "block")
    once("discover", f"read {files} ({blocks})")
    for step in status.compared:
        once(f"judge {step}", f"judged {blocks} (step {step})")
    if status.stage not in ("judging", "tokenizing"):
        tokens = counted(status.tokens, "token")
        once("tokenize", f"tokenized {counted(status.blocks, 'block')} ({tokens})")
        once("plan", f"planned {counted(status.shards_total or 0, 'shard')}")
    if status.stage == "finished":
        once("write", f"wrote {counted(status.shards, 'shard')}")
        once("commit", "wrote the manifest")


def _measure(start: Status, status: Status, elapsed: float) -> tuple[str, int | None, int]:
    """The progress of the present stage in words, and as an amount: the total, and what is done."""
    if status.stage == "tokenizing":
        rate = (status.tokens - start.tokens) / max(elapsed, 1e-9)
        new_bytes = status.text_bytes - start.text_bytes
        left = ""
        if new_bytes > 0 and status.text_bytes_total is not None:
            seconds = (status.text_bytes_total - status.text_bytes) * elapsed / new_bytes
            left = f", {duration(seconds)} left"
        blocks = f"{status.blocks:,}/{status.blocks_total:,} blocks"
        detail = f"{blocks}, {rate / 1e6:.2f}M tokens/s{left}"
        return detail, status.text_bytes_total, status.text_bytes
    if status.stage == "judging":
        detail = f"{status.judged:,}/{status.blocks_total:,} blocks, step {status.step}"
        if status.judged == status.blocks_total:
            detail = f"comparing documents, step {status.step}"
        return detail, status.blocks_total, status.judged
    if status.stage == "writing":
        shards = f"{status.shards:,}/{status.shards_total:,} shards"
        return shards, status.shards_total, status.shards
    return f"{status.files:,}/{status.files_total:,} files", None, 0
