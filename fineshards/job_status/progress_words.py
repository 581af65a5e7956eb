"""The progress of a job in words: lines, and a table of its stages that a terminal draws.

A thread looks at the output folder. So progress needs nothing from the runner, and looks the same
in every running mode, and from another machine (`fineshards status --watch`).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fineshards.errors import FineshardsError, printable
from fineshards.job_status.status import LONG_IDLE, Stage, Status, StatusReader, pause_after
from fineshards.wording import approximately, counted, describe_splits, duration

_log = logging.getLogger("fineshards")
_POLL_SECONDS = 0.5
# Without a terminal, and so without a table, a line says this often how far the job is.
_LINE_SECONDS = 60
# How long the end of a build waits for the last look at the output folder.
_LAST_LOOK_SECONDS = 2.0


def describe_stage(stage: Stage, status: Status) -> str:
    """How much of a stage is done, in words; empty if it has not begun."""
    blocks, tokens = status.of("tokenize").total, status.tokens
    amount = more = ""
    if stage.done or stage.state != "later":
        amount = _of(stage.done, stage.total, stage.unit)
    if stage.name == "read" and blocks is not None:
        more = counted(blocks, "block")
    elif stage.step is not None:
        more = f"step {stage.step}"
        if stage.state == "now" and stage.done == stage.total:
            amount = "comparing documents"
    elif stage.name == "tokenize" and amount:
        more = counted(tokens, "token")
        if status.tokens_expected is not None:
            more = f"{tokens:,} of about {approximately(status.tokens_expected)} tokens"
    return ", ".join(filter(None, (amount, more)))


def _of(done: int, total: int | None, noun: str) -> str:
    """How much of a total is done; the total alone if it is all done."""
    if total is None:
        return counted(done, noun) if done else ""
    return counted(total, noun) if done == total else f"{done:,} of {counted(total, noun)}"


def idle_note(status: Status, surely_runs: bool = False) -> str:
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
    if still := idle_note(status, surely_runs):
        command = "append" if status.generation > 1 else "build"
        return (
            f"{still}: nothing written for {duration(status.seconds_idle)}. The same {command} "
            "command resumes it."
        )
    words, now = [], status.now
    if now is not None and now.rate:
        speed = f"{approximately(round(now.rate))} tokens/s"
        words.append(f"{now.rate / 1e6:.1f} MB/s of text" if now.name == "judge" else speed)
    if now is not None and now.seconds_left is not None:
        of_stage = ""
        if now.name != "write":  # no rate is known of later stages
            of_stage = f" in stage {status.stages.index(now) + 1} of {len(status.stages)}"
        words.append(f"about {duration(now.seconds_left)} left{of_stage}")
    words.append(f"last written {duration(status.seconds_idle)} ago")
    if status.seconds_running is not None:
        words.append(f"running for {duration(status.seconds_running)}")
    return ", ".join(words)


def describe_status(status: Status) -> list[str]:
    """The status in a few lines."""
    if status.stage == "finished":
        read, shards = status.of("read"), describe_stage(status.of("write"), status)
        generation = f"; generation {status.generation}" if status.generation > 1 else ""
        return [
            f"finished: {counted(status.tokens, 'token')} in {shards} "
            f"from {_of(read.done, read.total, 'file')}{generation}",
            *describe_splits(status.splits or {}),
        ]
    lines = [status.stage + (f" generation {status.generation}" if status.generation > 1 else "")]
    for stage in status.stages:
        lines.append(f"  {stage.name:<10}{describe_stage(stage, status)}".rstrip())
    lines.append(describe_pace(status))
    if status.console is not None:
        lines.append(f"Dataflow's job {status.job_id}: {status.console}")
    if status.running is None and idle_note(status):
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
    """Calls a function with the status repeatedly while the body runs, and at its end."""
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
    """Yields the callback that shows a build's status: the given one, or for True one that draws a
    table, or prints lines where there is no terminal and no notebook."""
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
    """The last status, as a table that a terminal redraws, or as log lines."""

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
        """A context that draws the table; without a terminal it draws nothing."""
        if not self._draws:
            return nullcontext()
        return Live(self, console=self._console, refresh_per_second=8)

    def show(self, status: Status) -> None:
        """Draws a status, or logs the stages that have ended since the last one."""
        self._status = status
        if self._draws:
            return
        # Each stage once, when it is over, even if it was too short to be seen.
        done = [stage for stage in status.stages if stage.state == "done"]
        over = [f"{stage.name}: {describe_stage(stage, status)}" for stage in done]
        over += ["finished"] * (status.stage == "finished")
        for line in over[self._logged :]:
            self._log(line)
        self._logged = max(self._logged, len(over))
        now, still = time.monotonic(), idle_note(status, self._surely_runs)
        # Whether a job is running is logged at once.
        if status.now is not None and (now >= self._next_line or still != self._still):
            self._next_line, self._still = now + _LINE_SECONDS, still
            words = describe_stage(status.now, status)
            self._log(f"{status.stage}: {words}, {describe_pace(status, self._surely_runs)}")

    def __rich__(self) -> Table:
        """The stages, one per row; of the present one, how far and how fast it is."""
        table, ascii_only = Table.grid(padding=(0, 1)), self._console.options.ascii_only
        if self._status is None:
            table.add_row(self._spinner, "looking at the output folder")
            return table
        marks = {"done": "+" if ascii_only else "✓", "later": "." if ascii_only else "·"}
        table.add_column(width=1)
        table.add_column(min_width=9, no_wrap=True)
        for stage in self._status.stages:
            detail = printable(describe_stage(stage, self._status))
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
            still = "yellow" if idle_note(self._status) else ""
            table.add_row("", "", Text(describe_pace(self._status, self._surely_runs), still))
        return table
