"""Native threads: a command leaves none behind.

Threads of Arrow's readers may release a Python object while the interpreter shuts down. That can
abort the process after its work is done (https://github.com/apache/arrow/issues/34314).
"""

from pathlib import Path

from support.fresh_interpreter import run_program

PROGRAM = """
import os, sys, time
import numpy, pyarrow.parquet
from fineshards.cli.cli import main

def threads():
    return len(os.listdir("/proc/self/task"))

sample, output = sys.argv[1:]
before = threads()
for command in (
    ["build", "--input", sample, "--output", output, "--keep_checkpoints"],
    ["status", output],
    ["verify", output, "--sample", "5%"],
    ["inspect", output, "--shard", "train/0", "--token", "0"],
):
    assert main(command) == 0
    # A joined thread takes a moment to disappear. Arrow's would never disappear.
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() <= before, f"{command[0]} left {threads() - before} threads"
"""


def test_commands_leave_no_thread(sample: Path, tmp_path: Path) -> None:
    done = run_program(PROGRAM, sample, tmp_path / "out")
    assert done.returncode == 0, done.stderr
