"""`fineshards build`, and the entry of a Flex Template, whose launcher gives no command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from fineshards.commands.wording import counted, describe_splits
from fineshards.config import BuildConfig
from fineshards.pipeline.fresh import prepare_process
from fineshards.pipeline.interrupts import end_at_once, mention_resuming
from fineshards.pipeline.options import (
    Parser,
    add_build_flags,
    launches_template,
    parse_build_flags,
)
from fineshards.pipeline.run import execute, finished, prepare
from fineshards.pipeline.runners.choice import runs_here
from fineshards.pipeline.terminal import report_errors, working
from fineshards.shards.manifest import Manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a dataset from command-line flags; returns the exit code."""
    parser = Parser(prog="python -m fineshards.pipeline.main", description=__doc__)
    add_build_flags(parser)
    alone = argv is None
    if alone:
        end_at_once()
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: build(parse_build_flags(parser, arguments), alone))


def build(config: BuildConfig, alone: bool) -> None:
    """Builds a dataset with progress on the terminal; prints the outcome.

    alone: whether this process does nothing else. Raises FineshardsError, or whatever a runner
    makes of one (`pipeline.explain`).
    """
    began = time.monotonic()
    if alone:
        prepare_process()
        mention_resuming()
    launch = prepare(config, alone)
    root = launch.checkpoints.storage.root
    if launch.manifest is not None and not launches_template(config):
        print(f"already finished, nothing to do: {_outcome(launch.manifest, root)}")
        return
    resumed = launch.checkpoints.has_finished_blocks()
    local = runs_here(config)
    submitted = execute(launch, config, lambda storage: working(storage, local), alone)
    if submitted is not None:
        print(submitted)
        return
    manifest = finished(launch)
    seconds = time.monotonic() - began
    speed = ""
    if not resumed and local:
        speed = f" at {manifest.totals()['text_bytes'] / 1e6 / seconds:,.1f} MB/s of text"
    print(f"finished in {seconds:,.1f} s{speed}: {_outcome(manifest, root)}")


def _outcome(manifest: Manifest, root: str) -> str:
    """The finished dataset in a few lines: what is in it, where, and what each split holds."""
    totals, splits = manifest.totals(), manifest.splits()
    left_out = "".join(
        f", {counted(totals[what], 'row')} {words}"
        for what, words in (("nulls", "without text"), ("rejected", "rejected"))
        if totals[what]
    )
    lines = [
        f"{counted(totals['documents'], 'document')}{left_out}, "
        f"{counted(totals['tokens'], 'token')} in {root}",
        *describe_splits(splits),
    ]
    lines += [
        f"the {split} split is empty: {manifest.settings.split.why_empty(split)}"
        for split, sums in splits.items()
        if not sums["shards"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
