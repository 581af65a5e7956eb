"""A real build that stands still in the middle of tokenizing, so that tests can look at it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent.parent
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

    def kill(self) -> None:
        """Kills all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def paused_build(sample: Path, folder: Path) -> Iterator[PausedBuild]:
    """A build of six copies of the sample, stopped in a block that is not its first."""
    source, output = folder / "in.parquet", folder / "out"
    table = pa.concat_tables([pq.read_table(sample, columns=["text"])] * 6)
    pq.write_table(table, source, row_group_size=900)
    # One worker and the slow engine, so that there is a middle.
    flags = ["--block_bytes=1", "--workers=1", "--tokenizer_engine=tiktoken"]
    command = [sys.executable, "-m", "fineshards", "build", f"--input={source}", *flags]
    process = subprocess.Popen(
        [*command, f"--output={output}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    build = PausedBuild(process, output)
    try:
        while not _is_in_the_middle(output):
            assert process.poll() is None
            build.resume()
            time.sleep(0.01)
            os.killpg(process.pid, signal.SIGSTOP)
        yield build
    finally:
        if process.poll() is None:
            build.kill()


def _is_in_the_middle(output: Path) -> bool:
    """Whether a block is finished, and another one is being written."""
    finished = output.glob("checkpoints/*/blocks/*.train.parquet")
    return any(finished) and any(output.glob("checkpoints/unfinished/00000-*.train.parquet.*"))
