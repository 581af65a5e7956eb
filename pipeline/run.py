"""A build from start to end: launch, graph, runner, manifest. Prints nothing.

The command line wraps it in `Surroundings` of its own, which show progress.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ParamSpec, Protocol

from fineshards.config import BuildConfig
from fineshards.errors import FineshardsError
from fineshards.extras import naming_the_extra
from fineshards.pipeline.explain import explain, is_interrupt
from fineshards.pipeline.options import check_beam_args, launches_template
from fineshards.pipeline.runners import dataflow
from fineshards.pipeline.runners.choice import (
    RunnerChoice,
    choose_runner,
    new_pipeline,
    runs_in_this_process,
)
from fineshards.shards.manifest import MANIFEST_NAME, Manifest
from fineshards.storage.base import Storage

if TYPE_CHECKING:
    from apache_beam import Pipeline

    from fineshards.pipeline.launch import Launch
    from fineshards.shards.checkpoints import Checkpoints

_Arguments = ParamSpec("_Arguments")


class Surroundings(Protocol):
    """What a build is wrapped in: output, logging, settings of the process."""

    def starting(self) -> AbstractContextManager[None]:
        """Wraps the imports, the launch and the building of the graph."""

    def working(self, storage: Storage, runner: RunnerChoice) -> AbstractContextManager[None]:
        """Wraps the run of the graph."""


class _WithoutBeamsLog:
    """Leaves out Beam's log, which repeats with tracebacks what ends in one sentence.

    Builds in several threads share it: the first one silences the log, and the last one to end
    restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._level = logging.NOTSET
        self._placeholder = logging.NullHandler()

    def __enter__(self) -> None:
        root, beam = logging.getLogger(), logging.getLogger("apache_beam")
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                self._level = beam.level
                beam.setLevel(logging.CRITICAL + 1)
                if not root.handlers:
                    # Beam's options give the root logger a handler where it has none.
                    root.addHandler(self._placeholder)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                logging.getLogger().removeHandler(self._placeholder)
                logging.getLogger("apache_beam").setLevel(self._level)


_without_beams_log = _WithoutBeamsLog()


class Quiet:
    """For a build inside another program: shows nothing, and restores what it changes."""

    def starting(self) -> AbstractContextManager[None]:
        """Leaves out Beam's log."""
        return _without_beams_log

    def working(self, storage: Storage, runner: RunnerChoice) -> AbstractContextManager[None]:
        """Does what `starting` does."""
        return _without_beams_log


def _with_config(
    config: Callable[_Arguments, BuildConfig], action: Callable[[BuildConfig], Manifest]
) -> Callable[_Arguments, Manifest]:
    """Turns a function of a BuildConfig into one of its fields, for type checkers too."""

    def taking_arguments(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Manifest:
        signature.bind(*args, **kwargs)  # whose TypeError does not name the class
        return action(config(*args, **kwargs))

    signature = inspect.signature(config).replace(return_annotation="Manifest")
    taking_arguments.__signature__ = signature  # type: ignore[attr-defined]
    return taking_arguments


def run(config: BuildConfig) -> Manifest:
    """Builds a dataset, resumes it, or finds it finished; returns its manifest.

    Prints nothing, and leaves loggers, handlers and stderr as they were. Raises FineshardsError
    when the build fails, and when the runner was told not to wait for its end.
    """
    surroundings = Quiet()
    with surroundings.starting():
        launch = prepare(config)
    if launch.manifest is not None:
        return launch.manifest
    try:
        submitted = execute(launch, config, surroundings)
    except Exception as error:
        explained = explain(error)
        if explained is None or explained is error:
            raise
        raise explained from error
    if submitted is not None:
        raise FineshardsError(f"{submitted}. It is not waited for, so there is no manifest yet.")
    return finished(launch)


build = _with_config(BuildConfig, run)
build.__name__ = build.__qualname__ = "build"
build.__doc__ = """Builds a dataset, resumes it, or finds it finished; returns its manifest.

    The options are the flags of `fineshards build`, and the bytes are the same. An interrupted
    build resumes when it is called again. It prints nothing, and leaves the caller's loggers,
    handlers and stderr as they were. (With a runner other than the default, Beam's own workers in
    this process may print the traceback of an error.)

    Args:
        **options: The fields of BuildConfig. `output` is required, and either `input` or
            `dataset`.

    Returns:
        The Manifest of the finished dataset. `manifest.totals()` counts its documents and tokens.

    Raises:
        FineshardsError: One sentence that says what happened, where and what to do. UsageError is
            for options, InputError for the input, OutputError for the output folder.

    Example:
        >>> import fineshards
        >>> manifest = fineshards.build(
        ...     input="samples/debian_text.parquet", output=folder, shard_tokens=100_000
        ... )
        >>> manifest.totals()["documents"], len(manifest.shards)
        (1063, 7)
    """


@naming_the_extra()
def prepare(config: BuildConfig) -> Launch:
    """Calls `pipeline.launch`, imported late so that --help and wrong flags are fast."""
    check_beam_args(config)
    if dataflow.runs_on_dataflow(config):
        dataflow.refuse_impossible(config)
    from fineshards.pipeline.launch import prepare

    return prepare(config)


def execute(launch: Launch, config: BuildConfig, surroundings: Surroundings) -> str | None:
    """Runs a launched job to its end.

    Returns None, or, for a job that is not waited for, a sentence that says what became of it.
    Raises whatever the runner raises.
    """
    storage = launch.checkpoints.storage
    with _head_start(launch, config):
        with surroundings.starting():
            runner = choose_runner(config)
        with surroundings.working(storage, runner):
            with surroundings.starting():
                pipeline = _pipeline(launch, config, runner)
            if runner.local:
                _run_here(pipeline, launch.checkpoints, config.keep_checkpoints)
            elif dataflow.runs_on_dataflow(config):
                return dataflow.submit(pipeline, storage.root)
            else:
                from fineshards.pipeline.runners import portable

                portable.submit(pipeline, storage.root)
    return None


def finished(launch: Launch) -> Manifest:
    """Returns the manifest that a job has written; raises FineshardsError if there is none."""
    storage = launch.checkpoints.storage
    manifest = Manifest.load(storage)
    if manifest is None:
        raise FineshardsError(
            f"the runner says that the job is done, but {storage.path(MANIFEST_NAME)} is not "
            "there, so the dataset is not finished. See the runner's log, and run again."
        )
    return manifest


def _pipeline(launch: Launch, config: BuildConfig, runner: RunnerChoice) -> Pipeline:
    """Returns the job as a pipeline that is ready to run."""
    import apache_beam as beam

    from fineshards.pipeline.graph import build_pipeline
    from fineshards.transforms.work import Work

    beam_args = list(runner.beam_args)
    if runner.local:
        from fineshards.pipeline.runners.local import CachedOptions

        pipeline = beam.Pipeline(options=CachedOptions(beam_args))
    elif dataflow.runs_on_dataflow(config):
        pipeline = dataflow.new_pipeline(config)
    else:
        from fineshards.pipeline.runners.portable import DescribedOptions

        pipeline = new_pipeline(DescribedOptions(beam_args))
    if launch.manifest is not None and launches_template(config):
        # A template's launcher must start a job even if there is nothing to do.
        _ = pipeline | "AlreadyFinished" >> beam.Create([MANIFEST_NAME])
    else:
        build_pipeline(pipeline, Work.of(launch.checkpoints, launch.job, config, runner.threads))
    return pipeline


def _head_start(launch: Launch, config: BuildConfig) -> AbstractContextManager[None]:
    # Remote storage would get the same requests twice.
    places = [launch.checkpoints.storage.root, *(file.path for file in launch.job.files)]
    if not runs_in_this_process(config) or any("://" in place for place in places):
        return nullcontext()
    from fineshards.transforms.head_start import HeadStart
    from fineshards.transforms.work import Work

    return HeadStart(Work.of(launch.checkpoints, launch.job, config))


def _run_here(pipeline: Pipeline, checkpoints: Checkpoints, keep_checkpoints: bool) -> None:
    """Runs the job on this machine."""
    try:
        pipeline.run().wait_until_finish()
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from None
        # A second launch of the same job may have finished it and deleted the checkpoints that
        # this one was reading.
        if Manifest.load(checkpoints.storage) is None:
            raise
        if not keep_checkpoints:
            from fineshards.pipeline.launch import clear_checkpoints

            clear_checkpoints(checkpoints)
