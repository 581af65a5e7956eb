"""`fineshards build`, and the entry of a Flex Template, whose launcher gives no command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from fineshards.commands.wording import counted
from fineshards.config import BuildConfig
from fineshards.pipeline.options import (
    Parser,
    add_build_flags,
    launches_template,
    parse_build_flags,
)
from fineshards.pipeline.run import execute, finished, prepare
from fineshards.pipeline.terminal import Terminal, report_errors
from fineshards.shards.manifest import Manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a dataset from command-line flags; returns the exit code."""
    parser = Parser(prog="python -m fineshards.pipeline.main", description=__doc__)
    add_build_flags(parser)
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: build(parse_build_flags(parser, arguments)))


def build(config: BuildConfig) -> None:
    """Builds a dataset with progress on the terminal; prints the outcome.

    Raises FineshardsError, or whatever a runner makes of one (`pipeline.explain`).
    """
    began = time.monotonic()
    terminal = Terminal()
    with terminal.starting():
        launch = prepare(config)
    root = launch.checkpoints.storage.root
    if launch.manifest is not None and not launches_template(config):
        print(f"already finished, nothing to do: {_outcome(launch.manifest)} in {root}")
        return
    if launch.replaces:
        print(f"replaces a job in {root} that had finished nothing: {launch.replaces}")
    resumed = launch.checkpoints.has_finished_blocks()
    submitted = execute(launch, config, terminal)
    if submitted is not None:
        print(submitted)
        return
    manifest = finished(launch)
    seconds = time.monotonic() - began
    speed = ""
    if not resumed and terminal.local:
        speed = f" at {manifest.totals()['text_bytes'] / 1e6 / seconds:,.1f} MB/s of text"
    print(f"finished in {seconds:,.1f} s{speed}: {_outcome(manifest)} in {root}")


def _outcome(manifest: Manifest) -> str:
    totals = manifest.totals()
    test = manifest.layout.test_windows
    train = manifest.layout.windows - test
    left_out = "".join(
        f", {counted(totals[what], 'row')} {words}"
        for what, words in (("nulls", "without text"), ("rejected", "rejected"))
        if totals[what]
    )
    return (
        f"{counted(totals['documents'], 'document')}{left_out}, "
        f"{counted(totals['tokens'], 'token')}, "
        f"{test:,} test and {counted(train, 'train shard')}"
    )


if __name__ == "__main__":
    sys.exit(main())
