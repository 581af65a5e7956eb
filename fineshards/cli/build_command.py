"""`fineshards build`, and the entry of a Flex Template, whose launcher gives no command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fineshards.cli.command import Answer, note, show
from fineshards.cli.options import add_build_flags, parse_build_flags
from fineshards.cli.terminal import report_errors, working
from fineshards.config import BuildConfig
from fineshards.parser import Parser
from fineshards.pipeline.run import execute, finished, prepare
from fineshards.pipeline.runners.choice import launches_template, runs_here
from fineshards.shards.job.manifest import Manifest
from fineshards.wording import (
    counted,
    describe_repeats,
    describe_splits,
    warn_of_leaks,
    warn_of_steps,
)
from fineshards.worker import own_process

if TYPE_CHECKING:
    from fineshards.pipeline.launch import Launch


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a dataset from command-line flags; returns the exit code."""
    parser = Parser(prog="python -m fineshards.cli.build_command", description=__doc__)
    add_build_flags(parser)
    if argv is None:
        own_process.end_at_once()
        own_process.alone = True
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: show(build(parse_build_flags(parser, arguments))))


def build(config: BuildConfig) -> Answer:
    """Builds a dataset with progress on the terminal; returns the result.

    Raises FineshardsError, or whatever a runner makes of one (`pipeline.explain`).
    """
    began = time.monotonic()
    if own_process.alone:
        own_process.prepare()
        own_process.resume = own_process.RESUME
    launch = prepare(config)
    root = launch.checkpoints.storage.root
    if launch.manifest is not None and not launches_template(config):
        words = "nothing new" if config.append else "already finished"
        return _finished(launch.manifest, root, f"{words}, nothing to do", "nothing to do")
    if launch.replaces:
        note(f"starting over in {root}: an earlier attempt had finished nothing: {launch.replaces}")
    resumed = left_by_an_earlier_run(launch)
    if resumed:
        note(f"resuming: {resumed}")
    if trusted := [file for file in launch.job.new_files if file.trusted]:
        note(f"trusting the input: {counted(len(trusted), 'file')} of another version")
    local = runs_here(config)
    submitted = execute(launch, config, lambda storage: working(storage, local))
    if submitted is not None:
        result = "share" if config.share else "submitted"
        return Answer({"result": result, "output": root, "message": submitted}, [submitted])
    manifest = finished(launch)
    seconds = time.monotonic() - began
    speed = ""
    if not resumed and local:
        new = manifest.reports[len(launch.job.files) - len(launch.job.new_files) :]
        rate = sum(report.counts.text_bytes for report in new) / 1e6 / seconds
        # Of a little text, start-up takes most of the time.
        speed = f" at {rate:,.1f} MB/s of text" if rate >= 0.1 else ""
    words = "finished" + (f" generation {manifest.generation}" if launch.earlier else "")
    words += f" in {seconds:,.1f} s{speed}"
    return _finished(manifest, root, words, "finished", seconds)


def left_by_an_earlier_run(launch: Launch) -> str:
    """The work that an earlier run has finished, in words; "" if there is none."""
    checkpoints = launch.checkpoints
    if not checkpoints.has_finished_blocks():
        return ""
    if not checkpoints.storage.on_disk and checkpoints.read_layout() is None:
        return "some blocks are finished"  # a million of them take long to list
    from fineshards.job_status.progress_words import describe_stage  # late: --help needs no extra
    from fineshards.job_status.status import StatusReader

    status = StatusReader(checkpoints.storage).read()
    done = [
        f"{stage.name} {describe_stage(stage, status)}" for stage in status.stages[1:] if stage.done
    ]
    return "; ".join(done) or "some blocks are finished"


def _finished(
    manifest: Manifest, root: str, words: str, result: str, seconds: float = 0.0
) -> Answer:
    """The answer of a build: what the dataset holds, where, and what is in each split."""
    totals, splits, counts = manifest.totals, manifest.splits, manifest.counts()
    pages = counts.pages_unextracted
    record = {
        "result": result,
        "output": root,
        "fingerprint": manifest.fingerprint,
        "content_fingerprint": manifest.content_fingerprint,
        "generation": manifest.generation,
        "seconds": round(seconds, 3),
        "splits": splits,
        "totals": totals | {"dropped": counts.documents_dropped, "unextracted": pages},
        "leaks": manifest.leaks,
        "repeats": manifest.repeats,
        "step_warnings": warn_of_steps(manifest),
    }
    left_out = "".join(
        f", {counted(number, what)} {why}"
        for number, what, why in (
            (len(manifest.job.left_out), "file", "left out"),
            (totals["nulls"], "row", "without text"),
            (totals["rejected"], "row", "rejected"),
            (counts.documents_dropped, "document", "dropped"),
            (pages, "page", "whose text cannot be extracted"),
        )
        if number
    )
    lines = [
        f"{words}: {counted(totals['documents'], 'document')}{left_out}, "
        f"{counted(totals['tokens'], 'token')} in {root}",
        *describe_splits(splits),
    ]
    lines += [
        f"the {split} split is empty: {manifest.settings.split.why_empty(split)}"
        for split, sums in splits.items()
        if not (sums["shards"] or manifest.settings.split.asks_for_empty(split))
    ]
    if manifest.leaks is not None and manifest.leaks.test_documents:
        lines.append(f"warning: {warn_of_leaks(manifest.leaks, manifest.settings.split)}")
    if manifest.repeats:
        lines.append(f"warning: {describe_repeats(manifest)}")
    lines += [f"warning: {line}" for line in warn_of_steps(manifest)]
    return Answer(record, lines)


if __name__ == "__main__":
    sys.exit(main())
