"""The progress of a job: a table of its stages on a terminal, and log lines elsewhere.

A thread looks at the output folder. So progress needs nothing from the runner, and looks the same
in every running mode, and from another machine (`fineshards status --watch`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fineshards.errors import FineshardsError
from fineshards.job_status.stages import Stage, describe_pace, stages_of, stillness
from fineshards.job_status.status import Status, StatusReader, pause_after
from fineshards.printable import printable
from fineshards.wording import counted

_log = logging.getLogger("fineshards")
_POLL_SECONDS = 0.5
# Without a terminal, and so without a table, a line says this often how far the job is.
_LINE_SECONDS = 60
# How long the end of a build waits for the last look at the output folder.
_LAST_LOOK_SECONDS = 2.0
_BAR_COLUMNS = 24


@contextmanager
def watch(reader: StatusReader, console: Console) -> Iterator[None]:
    """Shows progress while the body runs. Its end does not wait for a server that is stalled."""
    progress = _Progress(console, surely_runs=True)
    with progress.live(), looking(reader, progress.show):
        yield


@contextmanager
def looking(reader: StatusReader, show: Callable[[Status], None]) -> Iterator[None]:
    """Calls a function with the status, again and again while the body runs, and at its end."""
    watcher = _Watcher(reader, show)
    threading.Thread(target=watcher.run, daemon=True).start()
    try:
        yield
    finally:
        watcher.end()


@contextmanager
def shown(progress: bool | Callable[[Status], None]) -> Iterator[Callable[[Status], None] | None]:
    """What takes the status of a build: a function, or True for a table or, without a terminal or a
    notebook, lines."""
    if callable(progress) or not progress:
        yield progress or None
        return
    console = Console()
    table = _Progress(console, surely_runs=True, log=console.print)
    with table.live():
        yield table.show


def follow(reader: StatusReader, console: Console) -> None:
    """Shows progress until the job has finished. Raises OutputError if its folder is gone."""
    progress, failed = _Progress(console), False
    with progress.live():
        while True:
            began, took = time.monotonic(), 0.0
            try:
                status = reader.read(added=True)
                failed, took = False, time.monotonic() - began
            except FineshardsError:
                # A job that ends deletes files while they are listed.
                if failed:
                    raise
                failed = True
            else:
                progress.show(status)
                if status.stage == "finished":
                    return
            time.sleep(pause_after(took, _POLL_SECONDS))


class _Progress:
    """What was seen last, as a table that a terminal draws again and again, or as log lines."""

    def __init__(
        self, console: Console, surely_runs: bool = False, log: Callable[[str], None] = _log.info
    ) -> None:
        self._console = console
        # Rich draws in a notebook with this library only.
        in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
        self._draws = console.is_terminal or in_notebook
        self._log = log
        self._surely_runs = surely_runs
        self._spinner = Spinner("line" if console.options.ascii_only else "dots")
        self._status: Status | None = None
        self._logged: set[str] = set()
        self._next_line = time.monotonic() + _LINE_SECONDS
        self._still = ""

    def live(self) -> Live | nullcontext[None]:
        """What draws the table; nothing without a terminal."""
        if not self._draws:
            return nullcontext()
        return Live(self, console=self._console, refresh_per_second=8)

    def show(self, status: Status) -> None:
        """Takes a status to be drawn, or logs what is new in it."""
        self._status = status
        if self._draws:
            return
        _log_stages(status, self._logged, self._log)
        now, still = time.monotonic(), stillness(status, self._surely_runs)
        # That a job is not running any more, or again, is said at once.
        if status.stage != "finished" and (now >= self._next_line or still != self._still):
            self._next_line, self._still = now + _LINE_SECONDS, still
            stage = next(stage for stage in stages_of(status) if stage.state == "now")
            self._log(f"{status.stage}: {stage.detail}, {self._pace(status)}")

    def __rich__(self) -> RenderableType:
        if self._status is None:
            row = Table.grid(padding=(0, 1))
            row.add_row(self._spinner, "looking at the output folder")
            return row
        pace = self._pace(self._status)
        return table_of(self._status, self._spinner, pace, self._console.options.ascii_only)

    def _pace(self, status: Status) -> str:
        return describe_pace(status, self._surely_runs)


def table_of(status: Status, running: RenderableType, pace: str, ascii_only: bool = False) -> Table:
    """The stages of a job, one per row. running: what marks the present one. pace: its speed."""
    marks = {"done": "+" if ascii_only else "✓", "later": "." if ascii_only else "·"}
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(min_width=9, no_wrap=True)
    table.add_column()
    for stage in stages_of(status):
        if stage.state == "now":
            table.add_row(running, Text(stage.name, "bold"), _present(status, stage, pace))
        else:
            mark, words = ("green", "") if stage.state == "done" else ("dim", "dim")
            table.add_row(
                Text(marks[stage.state], mark),
                Text(stage.name, words),
                Text(printable(stage.detail), words),
            )
    return table


def _present(status: Status, stage: Stage, pace: str) -> RenderableType:
    """How far the present stage is, and how fast."""
    lines: list[RenderableType] = [Text(printable(stage.detail))]
    if stage.total:
        share = min(1.0, stage.done / stage.total)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(
                stage.total,
                min(stage.done, stage.total),
                width=_BAR_COLUMNS,
                complete_style="cyan",
                finished_style="cyan",
            ),
            Text(f"{int(100 * share)} %"),
        )
        lines.append(bar)
    lines.append(Text(pace, "yellow" if stillness(status) else ""))
    return Group(*lines)


class _Watcher:
    """Looks at the output folder again and again, in a thread of its own."""

    def __init__(self, reader: StatusReader, show: Callable[[Status], None]) -> None:
        self._reader = reader
        self._show = show
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._over = False
        self._reported = False

    def run(self) -> None:
        """Looks until the end."""
        took = 0.0
        while not self._stop.wait(pause_after(took, _POLL_SECONDS)):
            began = time.monotonic()
            # What failed took as long as its retries, which says nothing of a look.
            took = time.monotonic() - began if self._look() else 0.0

    def end(self) -> None:
        """Looks for the last time, but not for long, and shows nothing from then on.

        In another thread, because the first one may be in the middle of retries, which take
        minutes. A look that is not done by now is left alone; the process may end without it.
        """
        self._stop.set()
        last = threading.Thread(target=self._look, daemon=True)
        last.start()
        last.join(_LAST_LOOK_SECONDS)
        # What is being shown may wait for its reader.
        held = self._lock.acquire(timeout=_LAST_LOOK_SECONDS)
        self._over = True
        if held:
            self._lock.release()

    def _look(self) -> bool:
        """Looks, and shows what it found; returns whether it found anything."""
        try:
            status = self._reader.read(added=True)
        except FineshardsError:
            return False  # the folder is being changed; the job itself will report it
        except Exception as error:
            if not self._reported:
                self._reported = True
                _log.warning(
                    "progress cannot be shown: unexpected %s. The build goes on. Please report "
                    "this, with the version of fineshards.",
                    type(error).__name__,
                )
            return False
        with self._lock:
            if not self._over:
                self._show(status)
        return True


def _log_stages(status: Status, logged: set[str], log: Callable[[str], None]) -> None:
    """Logs every stage once, when it is over, even if it was too short to be seen.

    logged: the stages logged so far; changed in place.
    """

    def once(stage: str, message: str) -> None:
        if stage not in logged:
            logged.add(stage)
            log(message)

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
    if status.stage in ("writing", "finished"):
        if status.shuffled is not None:
            once("shuffle", f"shuffled {counted(status.shuffled, 'token')}")
        once("plan", f"planned {counted(status.shards_total or 0, 'shard')}")
    if status.stage == "finished":
        once("write", f"wrote {counted(status.shards, 'shard')}")
        once("commit", "wrote the manifest")
