"""The progress of a job in words: lines, and a table of its stages that a terminal draws.

A thread looks at the output folder. So progress needs nothing from the runner, and looks the same
in every running mode, and from another machine (`fineshards status --watch`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fineshards.errors import FineshardsError
from fineshards.job_status.status import LONG_IDLE, Status, StatusReader, pause_after
from fineshards.printable import printable
from fineshards.wording import approximately, counted, describe_splits, duration

_log = logging.getLogger("fineshards")
_ORDER = ("discovering", "judging", "tokenizing", "shuffling", "writing", "finished")
_POLL_SECONDS = 0.5
# Without a terminal, and so without a table, a line says this often how far the job is.
_LINE_SECONDS = 60
# How long the end of a build waits for the last look at the output folder.
_LAST_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a job: read, judge, tokenize, shuffle or write.

    state: `done`, `now` or `later`. done, total: amounts of any unit, for a bar; total is None
    while it is not known. detail: how much is done, in words.
    """

    name: str
    state: str
    done: int
    total: int | None
    detail: str


def stages_of(status: Status) -> Iterator[Stage]:
    """The stages that a job passes, in order."""

    def state(stage: str) -> str:
        difference = _ORDER.index(status.stage) - _ORDER.index(stage)
        return "now" if difference == 0 else "done" if difference > 0 else "later"

    files, blocks = status.files_total, status.blocks_total
    detail = _of(status.files, files, "file")
    if blocks is not None:
        detail += f", {counted(blocks, 'block')}"
    yield Stage("read", state("discovering"), status.files, files, detail)
    for step in status.compared:
        detail = f"{counted(blocks or 0, 'block')}, step {step}"
        yield Stage("judge", "done", blocks or 0, blocks, detail)
    if status.step is not None:
        done = _of(status.judged, blocks, "block")
        detail = "comparing documents" if status.judged == blocks else done
        detail += f", step {status.step}"
        yield Stage("judge", state("judging"), status.judged, blocks, detail)
    for step in status.to_compare:
        yield Stage("judge", "later", 0, blocks, f"step {step}")
    # On some runners blocks are finished before all files are read.
    detail, total = _of(status.blocks, blocks, "block"), status.text_bytes_total
    if detail and total and 0 < status.text_bytes < total and state("tokenizing") == "now":
        expected = approximately(status.tokens * total // status.text_bytes)
        detail += f", {status.tokens:,} of about {expected} tokens"
    elif detail:
        detail += f", {counted(status.tokens, 'token')}"
    yield Stage("tokenize", state("tokenizing"), status.text_bytes, total, detail)
    if status.shuffled is not None:
        when = state("shuffling")
        detail = "" if when == "later" else _of(status.shuffled, status.tokens, "token")
        yield Stage("shuffle", when, status.shuffled, status.tokens, detail)
    total = status.shards_total
    yield Stage("write", state("writing"), status.shards, total, _of(status.shards, total, "shard"))


def _of(done: int, total: int | None, noun: str) -> str:
    """How much of a total is done; the total alone if it is all done."""
    if total is None:
        return counted(done, noun) if done else ""
    return counted(total, noun) if done == total else f"{done:,} of {counted(total, noun)}"


def stillness(status: Status, surely_runs: bool = False) -> str:
    """That a job is not running, in words; empty if it may run. surely_runs: see describe_pace."""
    if status.running is False:
        return "not running"
    is_idle = status.seconds_idle > LONG_IDLE and not surely_runs and not status.running
    return "probably not running" if is_idle else ""


def describe_pace(status: Status, surely_runs: bool = False) -> str:
    """How fast a running job is, how long its stage takes, and when it last wrote.

    If nothing was written for long, what that means instead. surely_runs: its workers are known to
    live, so a file only takes long.
    """
    if still := stillness(status, surely_runs):
        command = "append" if status.generation > 1 else "build"
        return (
            f"no worker has written for {duration(status.seconds_idle)}: it is {still}. The same "
            f"{command} command resumes it."
        )
    words = []
    if status.tokens_per_second and status.stage in ("tokenizing", "shuffling"):
        words.append(f"{approximately(round(status.tokens_per_second))} tokens/s")
    if status.bytes_per_second and status.stage == "judging":
        words.append(f"{status.bytes_per_second / 1e6:.1f} MB/s of text")
    if status.seconds_left is not None and status.stage != "finished":
        of_stage = ""
        # No rate is known of later stages. Where shards are written early, none is left.
        if status.stage != "writing" and not (status.stage == "tokenizing" and status.shards):
            states = [stage.state for stage in stages_of(status)]
            of_stage = f" in stage {states.index('now') + 1} of {len(states)}"
        words.append(f"about {duration(status.seconds_left)} left{of_stage}")
    words.append(f"last written {duration(status.seconds_idle)} ago")
    if status.seconds_running is not None:
        words.append(f"running for {duration(status.seconds_running)}")
    return ", ".join(words)


def describe_status(status: Status) -> list[str]:
    """The status in a few lines."""
    if status.stage == "finished":
        generation = f"; generation {status.generation}" if status.generation > 1 else ""
        return [
            f"finished: {counted(status.tokens, 'token')} in {counted(status.shards, 'shard')} "
            f"from {counted(status.files, 'file')}{generation}",
            *describe_splits(status.splits or {}),
        ]
    lines = [status.stage + (f" generation {status.generation}" if status.generation > 1 else "")]
    lines += [f"  {stage.name:<10}{stage.detail}".rstrip() for stage in stages_of(status)]
    lines.append(describe_pace(status))
    if status.console is not None:
        lines.append(f"Dataflow's job {status.job_id}: {status.console}")
    if status.running is None and stillness(status):
        lines.append(
            "This is judged by the times of files. A worker on gs:// or s3:// shows nothing before "
            "a file is complete."
        )
    return lines


@contextmanager
def watch(reader: StatusReader, console: Console) -> Iterator[None]:
    """Shows progress while the body runs. Its end does not wait for a server that is stalled."""
    progress = _Progress(console, surely_runs=True)
    with progress.live(), looking(reader, progress.show):
        yield


@contextmanager
def looking(reader: StatusReader, show: Callable[[Status], None]) -> Iterator[None]:
    """Calls a function with the status, again and again while the body runs, and at its end."""
    ended, over = threading.Event(), threading.Event()

    def look() -> None:
        took, last = 0.0, False
        while not last:
            last = ended.wait(pause_after(took, _POLL_SECONDS))
            began = time.monotonic()
            try:
                status = reader.read(added=True)
                took = time.monotonic() - began
                if not over.is_set():
                    show(status)
            except FineshardsError:
                # The folder is being changed; the job itself will report it. And how long retries
                # took says nothing of a look.
                took = 0.0
            except Exception as error:
                _log.warning(
                    "progress cannot be shown: unexpected %s. The build goes on. Please report "
                    "this, with the version of fineshards.",
                    type(error).__name__,
                )
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LAST_LOOK_SECONDS)  # one in the middle of retries is left alone
        over.set()


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
        self._logged = 0
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
        # Each stage once, when it is over, even if it was too short to be seen.
        over = [f"{each.name}: {each.detail}" for each in stages_of(status) if each.state == "done"]
        over += ["finished"] * (status.stage == "finished")
        for line in over[self._logged :]:
            self._log(line)
        self._logged = max(self._logged, len(over))
        now, still = time.monotonic(), stillness(status, self._surely_runs)
        # That a job is not running any more, or again, is said at once.
        if status.stage != "finished" and (now >= self._next_line or still != self._still):
            self._next_line, self._still = now + _LINE_SECONDS, still
            stage = next(stage for stage in stages_of(status) if stage.state == "now")
            self._log(f"{status.stage}: {stage.detail}, {describe_pace(status, self._surely_runs)}")

    def __rich__(self) -> Table:
        """The stages, one per row; of the present one, how far and how fast it is."""
        table, ascii_only = Table.grid(padding=(0, 1)), self._console.options.ascii_only
        if self._status is None:
            table.add_row(self._spinner, "looking at the output folder")
            return table
        marks = {"done": "+" if ascii_only else "✓", "later": "." if ascii_only else "·"}
        table.add_column(width=1)
        table.add_column(min_width=9, no_wrap=True)
        for stage in stages_of(self._status):
            detail = printable(stage.detail)
            if stage.state != "now":
                mark, words = ("green", "") if stage.state == "done" else ("dim", "dim")
                cells = Text(marks[stage.state], mark), Text(stage.name, words), Text(detail, words)
                table.add_row(*cells)
                continue
            table.add_row(self._spinner, Text(stage.name, "bold"), detail)
            if stage.total:
                done, bar = min(stage.done, stage.total), Table.grid(padding=(0, 1))
                drawn = ProgressBar(
                    stage.total, done, width=24, complete_style="cyan", finished_style="cyan"
                )
                bar.add_row(drawn, f"{100 * done // stage.total} %")
                table.add_row("", "", bar)
            still = "yellow" if stillness(self._status) else ""
            table.add_row("", "", Text(describe_pace(self._status, self._surely_runs), still))
        return table
