"""The job's entry: flags without a subcommand, as a Flex Template launcher passes them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from pipeline.options import (
    BuildOptions,
    Parser,
    add_build_flags,
    beam_arguments,
    parse_build_flags,
)
from pipeline.terminal import hold_back_stderr, report_errors, set_up_logging
from shards.manifest import Manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Builds a dataset from command-line flags; returns the exit code."""
    parser = Parser(prog="python -m pipeline.main", description=__doc__)
    add_build_flags(parser)
    arguments = sys.argv[1:] if argv is None else argv
    return report_errors(lambda: build(parse_build_flags(parser, arguments)))


def build(options: BuildOptions) -> None:
    """Builds a dataset, or continues, or finds it finished. Raises FineshardsError."""
    # Beam and the tokenizer are imported late, so that --help and mistakes are quick.
    from pipeline.launch import clear_checkpoints, prepare

    began = time.monotonic()
    launch = prepare(options)
    storage = launch.checkpoints.storage
    if launch.manifest is not None:
        print(f"already finished, nothing to do: {_outcome(launch.manifest)} in {storage.root}")
        return

    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from pipeline.graph import build_pipeline
    from pipeline.progress import watch

    beam_args, local = beam_arguments(options)
    set_up_logging(Console(stderr=True), local)
    pipeline = beam.Pipeline(options=PipelineOptions(beam_args))
    build_pipeline(
        pipeline,
        launch.checkpoints,
        launch.job.settings,
        len(launch.job.files),
        options.max_bad_rows,
        options.keep_checkpoints,
    )
    if not local:
        pipeline.run().wait_until_finish()
        return
    # Beam speaks gRPC with its own workers on this machine; gRPC would send even that to the proxy
    # that the environment names, where it fails after a minute.
    os.environ.setdefault("no_grpc_proxy", "localhost,127.0.0.1")
    try:
        with hold_back_stderr() as console, watch(storage, console) as start:
            set_up_logging(console, local)
            pipeline.run().wait_until_finish()
    except Exception:
        # A second launch of this very job may have finished it and cleared the checkpoints that
        # this one was reading.
        if Manifest.load(storage) is None:
            raise
        if not options.keep_checkpoints:
            clear_checkpoints(storage)
    manifest = Manifest.load(storage)
    assert manifest is not None, "the graph ended without an error"
    seconds = time.monotonic() - began
    read = manifest.totals()["text_bytes"] if start.blocks == 0 else None
    speed = f" at {read / 1e6 / seconds:,.1f} MB of text a second" if read else ""
    print(f"finished in {seconds:,.1f} s{speed}: {_outcome(manifest)} in {storage.root}")


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
