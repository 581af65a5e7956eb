"""`fineshards build`, and the entry of a Flex Template, whose launcher gives no command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fineshards.commands.wording import counted
from fineshards.config import BuildConfig
from fineshards.pipeline.options import (
    add_build_flags,
    launches_template,
    parse_build_flags,
)
from fineshards.pipeline.outcome import Outcome, note, show
from fineshards.pipeline.parser import Parser
from fineshards.pipeline.run import execute, finished, prepare
from fineshards.pipeline.terminal import Terminal, report_errors
from fineshards.shards.manifest import Manifest

if TYPE_CHECKING:
    from fineshards.pipeline.launch import Launch


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a dataset from command-line flags; returns the exit code."""
    parser = Parser(prog="python -m fineshards.pipeline.main", description=__doc__)
    add_build_flags(parser)
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: show(build(parse_build_flags(parser, arguments))))


def build(config: BuildConfig) -> Outcome:
    """Builds a dataset with progress on the terminal; returns what became of it.

    Raises FineshardsError, or whatever a runner makes of one (`pipeline.explain`).
    """
    began = time.monotonic()
    terminal = Terminal()
    with terminal.starting():
        launch = prepare(config)
    root = launch.checkpoints.storage.root
    if launch.manifest is not None and not launches_template(config):
        return _finished(launch.manifest, root, "already finished, nothing to do", "nothing to do")
    resumed = _left_by_an_earlier_run(launch)
    if resumed:
        note(f"resuming: {resumed}")
    submitted = execute(launch, config, terminal)
    if submitted is not None:
        return Outcome({"result": "submitted", "output": root, "message": submitted}, [submitted])
    manifest = finished(launch)
    seconds = time.monotonic() - began
    speed = ""
    if not resumed and terminal.local:
        speed = f" at {manifest.totals()['text_bytes'] / 1e6 / seconds:,.1f} MB/s of text"
    return _finished(manifest, root, f"finished in {seconds:,.1f} s{speed}", "finished", seconds)


def _left_by_an_earlier_run(launch: Launch) -> str:
    """What an earlier run has left for this one, in words; "" if there is nothing."""
    checkpoints = launch.checkpoints
    blocks, shards = len(checkpoints.finished_blocks()), len(checkpoints.finished_shards())
    if not blocks:
        return ""
    layout = checkpoints.read_layout()
    if layout is not None:
        return f"all {blocks:,} blocks and {shards:,} of {layout.windows:,} shards are finished"
    # The number of all blocks is in one small file per input file, which takes long to read from
    # remote storage.
    total = ""
    if "://" not in checkpoints.storage.root:
        known = [checkpoints.read_blocks(file.index) for file in launch.job.files]
        if None not in known:
            total = f" of {sum(len(found or ()) for found in known):,}"
    return f"{blocks:,}{total} blocks are finished"


def _finished(
    manifest: Manifest, root: str, words: str, result: str, seconds: float = 0.0
) -> Outcome:
    """The outcome of a build whose dataset is finished."""
    totals = manifest.totals()
    test = manifest.layout.test_windows
    train = manifest.layout.windows - test
    record = {
        "result": result,
        "output": root,
        "fingerprint": manifest.fingerprint,
        "seconds": round(seconds, 3),
        "test_shards": test,
        "train_shards": train,
        "totals": totals,
    }
    left_out = "".join(
        f", {counted(totals[what], 'row')} {why}"
        for what, why in (("nulls", "without text"), ("rejected", "rejected"))
        if totals[what]
    )
    contents = (
        f"{counted(totals['documents'], 'document')}{left_out}, "
        f"{counted(totals['tokens'], 'token')}, "
        f"{test:,} test and {counted(train, 'train shard')}"
    )
    return Outcome(record, [f"{words}: {contents} in {root}"])


if __name__ == "__main__":
    sys.exit(main())
