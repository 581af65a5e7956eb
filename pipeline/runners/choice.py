"""The choice of the runner, and the arguments with which Beam is called for it."""

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

    beam_args: Beam's arguments. local: whether it runs on this machine. in_process: whether workers
    may run in this process, local or not. threads: that work at once in each worker.
    """

    beam_args: tuple[str, ...]
    local: bool
    in_process: bool
    threads: int


def choose_runner(config: BuildConfig) -> RunnerChoice:
    """The runner that the options ask for, and Beam's arguments for it.

    Beam's DirectRunner takes Prism if its binary is installed or can be downloaded, and the Python
    runner otherwise. Here it always means the Python runner, so that local runs behave the same
    with and without a network. By default it has one worker, in this process, and
    `--direct_num_workers` is the number of threads of the steps: one per core unless given
    (transforms/parallel.py).
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
    given_workers = any(arg.split("=")[0] == "--direct_num_workers" for arg in args)
    workers = (given.view_as(DirectOptions).direct_num_workers if given_workers else 0) or cores
    if given.view_as(DirectOptions).direct_running_mode == "in_memory":
        return RunnerChoice((*args, "--direct_num_workers=1"), True, True, workers)
    return RunnerChoice((*args, f"--direct_num_workers={workers}"), True, True, 1)


def runs_in_this_process(config: BuildConfig) -> bool:
    """Whether the steps run in this process, one thread per core. Does not import Beam."""
    local = runner_name(config.beam_args) in _LOCAL
    return local and not any(arg.startswith("--direct_") for arg in config.beam_args)


def new_pipeline(options: PipelineOptions) -> Pipeline:
    """An empty pipeline; raises UsageError for options that Beam rejects."""
    import apache_beam as beam

    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise UsageError(" ".join(str(error).split())) from error
