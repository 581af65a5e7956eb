"""Where a job runs, and the arguments with which Beam is called for it."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.pipeline.beam_flags import runner_name
from fineshards.storage.temporary import scratch_folder
from fineshards.worker import own_process

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

# Names of the runner on this machine.
_LOCAL = ("", "direct", "fnapi")
# What Beam imports for its own input and output, half of the time that its import takes.
_CONNECTORS = ("apache_beam.io.gcp.bigquery", "azure", "boto3", "google.cloud", "pandas", "pymongo")
# Beam's flags for its own local workers, and the hint for remote ones.
_WORKERS = ("--direct_num_workers", "--direct_running_mode", "--num_workers", "--max_num_workers")


def runs_here(config: BuildConfig) -> bool:
    """Whether the job runs on this machine, in our own processes. Does not import Beam."""
    return runner_name(config.beam_args) in _LOCAL


def refuse_other_workers(config: BuildConfig) -> None:
    """Raises UsageError for flags about workers that have no meaning where the job runs."""
    runner = runner_name(config.beam_args)
    if runs_here(config):
        for arg in config.beam_args:
            if arg.split("=")[0] in _WORKERS:
                raise UsageError(
                    f"{arg}: a local run has its own worker processes. Use --workers N for their "
                    "number; the default is one per usable core."
                )
    elif config.workers is not None and runner != "dataflow":
        raise UsageError(
            f"--workers {config.workers}: this is for local runs and Dataflow. Use the runner's "
            "own flag, such as --parallelism for Flink."
        )


def local_args(config: BuildConfig) -> list[str]:
    """Beam's arguments for a local run.

    Beam's DirectRunner takes Prism if it is installed or can be downloaded. Here it always means
    the Python runner, with one worker in this process, because the pool does the work.
    """
    return [*config.beam_args, "--runner=FnApiRunner", "--direct_num_workers=1"]


def local_pipeline(config: BuildConfig) -> Pipeline:
    """An empty pipeline for this machine."""
    with own_process.without(*_CONNECTORS):
        import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    class CachedOptions(PipelineOptions):
        """Options that create each of their views once.

        Beam reads its options several times for every transform, and each time parses all flags of
        all option classes: two thirds of the time to build a graph. The views share their values.
        """

        def view_as(self, cls: type) -> Any:
            views = self.__dict__.setdefault("_views", {})
            if cls not in views:
                views[cls] = super().view_as(cls)
            return views[cls]

    with temporary_files_of_beam(here=True):
        return beam.Pipeline(options=CachedOptions(local_args(config)))


@contextmanager
def temporary_files_of_beam(here: bool) -> Iterator[None]:
    """Has Beam make its temporary files in a scratch folder.

    here: remove it after the body; else when this process ends, after Beam has stopped what it
    started for another runner. So signals raise from now on.
    """
    if not here:
        own_process.raise_instead()
    with ExitStack() as stack:
        folder, before = stack.enter_context(scratch_folder()), tempfile.tempdir
        if not here:  # before Beam registers, so it is called after that
            atexit.register(stack.pop_all().close)
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def new_pipeline(options: PipelineOptions) -> Pipeline:
    """An empty pipeline; raises UsageError for options that Beam rejects."""
    import apache_beam as beam

    try:
        return beam.Pipeline(options=options)
    except ValueError as error:
        raise UsageError(" ".join(str(error).split())) from error
