"""Where a job runs: the runner, and how Beam is called for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.options import runner_name

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions


# Names of the runner on this machine.
_LOCAL = ("", "direct", "fnapi")


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """Where the job runs.

    beam_args: Beam's arguments. local: whether it is this machine. in_process: whether workers may
    be in this process, local or not. threads: at work at once in each worker.
    """

    beam_args: tuple[str, ...]
    local: bool
    in_process: bool
    threads: int


def choose_runner(config: BuildConfig) -> RunnerChoice:
    """How to call Beam.

    Beam's DirectRunner is a switch that takes Prism where its binary is at hand or can be fetched,
    and the Python runner elsewhere; here it always means the Python runner, so that local runs
    behave alike with and without a network. Unless another mode is asked for it has one worker, in
    this process, and `--direct_num_workers` is the number of threads of the steps: a core each by
    default (transforms/parallel.py).
    """
    from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

    args = config.beam_args
    if runner_name(args) not in _LOCAL:
        in_process = runner_name(args) != "dataflow"
        return RunnerChoice(tuple(args), False, in_process, 1)
    given = PipelineOptions(list(args))
    args = (*args, "--runner=FnApiRunner")
    cores = os.cpu_count() or 1
    # Beam's own default is one worker, and 0 means all cores.
    asked = any(arg.split("=")[0] == "--direct_num_workers" for arg in args)
    workers = (given.view_as(DirectOptions).direct_num_workers if asked else 0) or cores
    if given.view_as(DirectOptions).direct_running_mode == "in_memory":
        return RunnerChoice((*args, "--direct_num_workers=1"), True, True, workers)
    return RunnerChoice((*args, f"--direct_num_workers={workers}"), True, True, 1)


def runs_in_this_process(config: BuildConfig) -> bool:
    """Whether the steps run in this process, with a thread a core; known without Beam."""
    local = runner_name(config.beam_args) in _LOCAL
    return local and not any(arg.startswith("--direct_") for arg in config.beam_args)


def new_pipeline(options: PipelineOptions) -> Pipeline:
    """An empty pipeline; raises UsageError for what Beam has against the options."""
    import apache_beam as beam

    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise UsageError(" ".join(str(error).split())) from error
