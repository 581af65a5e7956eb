"""`status --watch`: follows a job that another process does, on a terminal and without one."""

import codecs
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support.checkout import ROOT
from support.faulty_proxy import Proxy

from fineshards.cli.cli import main
from fineshards.job_status.progress_words import watch
from fineshards.job_status.status import StatusReader, status
from fineshards.shards.job.runs import held_lock
from fineshards.storage.open import open_storage
from fineshards.wording import approximately

# Of the input.
BLOCKS = 8


class PausedBuild:
    """A build whose processes are stopped (SIGSTOP)."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output

    def resume(self) -> None:
        """Lets it go on."""
        os.killpg(self.process.pid, signal.SIGCONT)


class Terminal:
    """A `status --watch` on a pseudo-terminal. shown: what it has written so far."""

    def __init__(self, folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fineshards", "status", str(folder), "--watch"],
            cwd=ROOT,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        )
        os.close(theirs)
        # A read may end within a letter.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.shown = ""

    def wait_for(self, pattern: str) -> None:
        """Reads until something is shown."""
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.shown):
            assert self._read(), self.shown
            assert time.monotonic() < deadline, self.shown

    def end(self) -> int:
        """Reads until the end; returns the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait()

    def _read(self) -> bool:
        # So that a test fails, and does not wait for ever.
        assert select.select([self._ours], [], [], 60)[0], self.shown
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.shown += self._decoder.decode(chunk)
        return bool(chunk)


def watching(folder: Path | str, *flags: str) -> subprocess.Popen[str]:
    """A `status --watch` without a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "fineshards", "status", str(folder), "--watch", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def age(folder: Path, seconds: float) -> None:
    """Makes all files of a folder older."""
    for path in folder.rglob("*"):
        os.utime(path, times=(time.time() - seconds,) * 2)


def is_in_the_middle(output: Path) -> bool:
    """Whether some blocks are finished, and others are not."""
    return 0 < len([*output.glob("checkpoints/*/blocks/*.json")]) < BLOCKS


@pytest.fixture(scope="module")
def paused(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PausedBuild]:
    """A build of six copies of the sample, stopped where its first blocks are finished."""
    folder = tmp_path_factory.mktemp("paused")
    output = folder / "out"
    table = pa.concat_tables([pq.read_table(sample, columns=["text"])] * 6)
    pq.write_table(table, folder / "in.parquet", row_group_size=900)
    # One worker and the slow engine, so that there is a middle.
    flags = ["--block_bytes=1", "--workers=1", "--tokenizer_engine=tiktoken"]
    command = [sys.executable, "-m", "fineshards", "build", f"--input={folder / 'in.parquet'}"]
    process = subprocess.Popen(
        [*command, f"--output={output}", *flags],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    build = PausedBuild(process, output)
    try:
        while not is_in_the_middle(output):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGSTOP)
        yield build
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def stopped(paused: PausedBuild, tmp_path: Path) -> Path:
    """What a build leaves that was killed seventeen minutes ago."""
    shutil.copytree(paused.output, tmp_path / "out")
    age(tmp_path / "out", 17 * 60)
    return tmp_path / "out"


def test_a_job_that_stopped_is_said_to_and_ctrl_c_ends_the_watching(stopped: Path) -> None:
    terminal = Terminal(stopped)
    terminal.wait_for("not running: nothing written for 17 min")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "interrupted" not in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_a_job_that_stopped_is_said_to_without_a_terminal_at_once(stopped: Path) -> None:
    process = watching(stopped)
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]  # the second came after a minute
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert re.search(r"tokenizing: \d+ of \d+ blocks, .*not running: nothing written", lines[1])


def test_the_process_of_a_build_knows_that_it_runs(stopped: Path) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=100)
    storage = open_storage(str(stopped))
    (folder,) = (path.parent for path in stopped.glob("checkpoints/*/running"))
    with (
        held_lock(storage, str(folder.relative_to(stopped))),
        watch(StatusReader(storage), console),
    ):
        deadline = time.monotonic() + 60
        while "last written" not in drawn.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "last written 17 min ago" in drawn.getvalue()
    assert "probably" not in drawn.getvalue()


def test_a_job_that_is_deleted_ends_the_watching_with_a_sentence(stopped: Path) -> None:
    terminal = Terminal(stopped)
    terminal.wait_for("tokenize")
    shutil.rmtree(stopped)
    assert terminal.end() == 1
    assert f"fineshards: {stopped} does not hold this job any more: it was" in terminal.shown
    assert "Traceback" not in terminal.shown


@pytest.mark.long
def test_a_running_job_is_followed_to_its_end(
    paused: PausedBuild, capsys: pytest.CaptureFixture[str]
) -> None:
    """Comes last of those with a paused build, because it lets the build go on."""
    found = status(paused.output)
    assert found.stage == "tokenizing"
    terminal, lines = Terminal(paused.output), watching(paused.output, "--json")
    done, expected = found.of("tokenize").done, approximately(found.tokens_expected or 0)
    terminal.wait_for(
        rf"tokenize.*{done} of {BLOCKS} blocks, {found.tokens:,} of about {expected} tokens"
    )
    paused.resume()
    assert paused.process.wait() == 0
    assert terminal.end() == 0
    end = status(paused.output)
    splits, shards = ["test", "train"], end.of("write").done
    ended = f"finished: {end.tokens:,} tokens in {shards} shards from 1 file"
    assert [line.split()[0] for line in terminal.shown.splitlines()[-2:]] == splits
    assert ended in terminal.shown
    assert re.search(rf"✓.*tokenize.* {BLOCKS} blocks, {end.tokens:,} tokens", terminal.shown)
    printed, logged = lines.communicate()
    assert lines.returncode == 0
    assert json.loads(printed)["tokens"] == end.tokens
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in logged.splitlines()] == [
        f"read: 1 file, {BLOCKS} blocks",
        f"tokenize: {BLOCKS} blocks, {end.tokens:,} tokens",
        f"write: {shards} shards",
        "finished",
    ]
    # A finished dataset is not waited for.
    capsys.readouterr()
    assert main(["status", str(paused.output), "--watch"]) == 0
    assert capsys.readouterr().out.startswith(ended)


@pytest.mark.cloud
def test_a_job_on_gs_is_followed(cloud: Proxy, sample: Path) -> None:
    output = "gs://data/out"
    flags = ["--block_bytes=1", "--shard_tokens=100000"]
    command = [sys.executable, "-m", "fineshards", "build", f"--input={sample}", *flags]
    build = subprocess.Popen([*command, f"--output={output}"], cwd=ROOT)
    while not any(name.endswith("metadata/job.json") for name in cloud.names("data")):
        assert build.poll() is None
        time.sleep(0.05)
    watcher = watching(output)
    printed, logged = watcher.communicate()
    assert (build.wait(), watcher.returncode) == (0, 0)
    assert printed.startswith("finished: 665,971 tokens in 8 shards")
    assert logged.splitlines()[-1].endswith(" finished")
