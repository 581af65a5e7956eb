"""The job's entry: flags without a subcommand, as a Flex Template launcher passes them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console

from pipeline import dataflow
from pipeline.failures import is_interrupt
from pipeline.options import (
    BuildOptions,
    Parser,
    add_build_flags,
    launches_template,
    parse_build_flags,
)
from pipeline.runners import RunnerChoice, choose_runner, new_pipeline, runs_in_this_process
from pipeline.startup import without_garbage_collection
from pipeline.terminal import hold_back_stderr, report_errors, set_up_logging
from shards.errors import FineshardsError
from shards.manifest import MANIFEST_NAME, Manifest
from shards.storage import Storage

if TYPE_CHECKING:
    from apache_beam import Pipeline

    from pipeline.launch import Launch


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a dataset from command-line flags; returns the exit code."""
    parser = Parser(prog="python -m pipeline.main", description=__doc__)
    add_build_flags(parser)
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: build(parse_build_flags(parser, arguments)))


def build(options: BuildOptions) -> None:
    """Builds a dataset, or continues, or finds it finished. Raises FineshardsError."""
    began = time.monotonic()
    if dataflow.runs_on_dataflow(options):
        dataflow.refuse_impossible(options)
    with without_garbage_collection():
        # Imported late, as Beam is, so that --help and mistakes are quick.
        from pipeline.launch import prepare

        launch = prepare(options)
    storage = launch.checkpoints.storage
    if launch.manifest is not None and not launches_template(options):
        print(f"already finished, nothing to do: {_outcome(launch.manifest)} in {storage.root}")
        return

    anew = not launch.checkpoints.has_finished_blocks()
    with _head_start(launch, options):
        with without_garbage_collection():
            pipeline, runner = _pipeline(launch, options)
        if runner.local:
            _run_here(pipeline, storage, options.keep_checkpoints)
        elif dataflow.runs_on_dataflow(options):
            if came_of_it := dataflow.submit(pipeline, storage.root):
                print(came_of_it)
                return
        else:
            from pipeline import portable

            # Workers in this process (--environment_type=LOOPBACK) print tracebacks, too.
            with hold_back_stderr() as console:
                set_up_logging(console, local=False)
                portable.submit(pipeline, storage.root)
    manifest = Manifest.load(storage)
    if manifest is None:
        raise FineshardsError(
            f"the runner says that the job is done, but {storage.path(MANIFEST_NAME)} is not "
            "there, so the dataset is not finished. See the runner's log, and run again."
        )
    seconds = time.monotonic() - began
    speed = ""
    if anew and runner.local:
        rate = manifest.totals()["text_bytes"] / 1e6 / seconds
        speed = f" at {rate:,.1f} MB of text a second"
    print(f"finished in {seconds:,.1f} s{speed}: {_outcome(manifest)} in {storage.root}")


def _pipeline(launch: Launch, options: BuildOptions) -> tuple[Pipeline, RunnerChoice]:
    """The job as a pipeline that is ready to run."""
    import apache_beam as beam

    from pipeline.graph import build_pipeline

    runner = choose_runner(options)
    set_up_logging(Console(stderr=True), runner.local)
    beam_args = list(runner.beam_args)
    if runner.local:
        from pipeline.local_runner import CachedOptions, mend_runner

        mend_runner()
        pipeline = beam.Pipeline(options=CachedOptions(beam_args))
    elif dataflow.runs_on_dataflow(options):
        pipeline = dataflow.new_pipeline(options)
    else:
        from pipeline.portable import DescribedOptions

        pipeline = new_pipeline(DescribedOptions(beam_args))
    if launch.manifest is not None:
        # A template's launcher must leave a job even if there is nothing to do.
        _ = pipeline | "AlreadyFinished" >> beam.Create([MANIFEST_NAME])
        return pipeline, runner
    build_pipeline(
        pipeline,
        launch.checkpoints,
        launch.job.settings,
        len(launch.job.files),
        options.engine,
        options.assembly,
        runner.threads,
        options.max_bad_rows,
        options.keep_checkpoints,
    )
    return pipeline, runner


def _head_start(launch: Launch, options: BuildOptions) -> AbstractContextManager[None]:
    # What is elsewhere would be asked for the same things twice.
    places = [launch.checkpoints.storage.root, *(file.path for file in launch.job.files)]
    if not runs_in_this_process(options) or any("://" in place for place in places):
        return nullcontext()
    from transforms.head_start import HeadStart

    return HeadStart(launch.checkpoints, launch.job.settings, options.engine, options.max_bad_rows)


def _run_here(pipeline: Pipeline, storage: Storage, keep_checkpoints: bool) -> None:
    """Runs the job on this machine."""
    from pipeline.launch import clear_checkpoints
    from pipeline.progress import watch

    try:
        with hold_back_stderr() as console, watch(storage, console):
            set_up_logging(console, local=True)
            try:
                pipeline.run().wait_until_finish()
            except RuntimeError as error:
                if is_interrupt(error):
                    raise KeyboardInterrupt from None
                raise
    except Exception:
        # A second launch of this very job may have finished it and cleared the checkpoints that
        # this one was reading.
        if Manifest.load(storage) is None:
            raise
        if not keep_checkpoints:
            clear_checkpoints(storage)


def _outcome(manifest: Manifest) -> str:
    totals = manifest.totals()
    test = manifest.layout.test_windows
    train = manifest.layout.windows - test
    left_out = "".join(
        f", {totals[what]:,} rows {words}"
        for what, words in (("nulls", "without text"), ("rejected", "rejected"))
        if totals[what]
    )
    return (
        f"{totals['documents']:,} documents{left_out}, {totals['tokens']:,} tokens, "
        f"{test:,} test and {train:,} train shards"
    )


if __name__ == "__main__":
    sys.exit(main())
