"""A build from start to end: launch, graph, runner, manifest. Prints nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.errors import FineshardsError, InputError, UsageError
from fineshards.extras import naming_the_extra
from fineshards.pipeline.beam_errors import explain
from fineshards.pipeline.runners import choice, dataflow
from fineshards.pipeline.share import Share, describe_left, part_of, share_of
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.manifest_file import MANIFEST_NAME
from fineshards.shards.job.runs import RemoteRun, claimed_shards, forget, held_lock
from fineshards.storage.base import Storage
from fineshards.worker import own_process
from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter

if TYPE_CHECKING:
    from apache_beam import Pipeline

    from fineshards.job_status.status import Status
    from fineshards.pipeline.launch import Launch
    from fineshards.shards.job.records import SourceFile
    from fineshards.worker.work import Work

_Working = Callable[[Storage], AbstractContextManager[None]]


def run(config: BuildConfig, hear: Callable[[Status], None] | None = None) -> Manifest:
    """Builds a dataset, resumes it, or finds it finished; returns its manifest.

    It works in a fresh interpreter, prints nothing, and changes nothing in this process. Raises
    FineshardsError when the build fails, and when the runner was told not to wait for its end.

    hear: called here with the status of the job, again and again.
    """
    return call_in_fresh_interpreter(build_quietly, config, hear=hear)


def build_quietly(config: BuildConfig, tell: Callable[[Status], None] | None = None) -> Manifest:
    """Does what `run` does, in this process, which does nothing else."""
    launch = prepare(config)
    return launch.manifest or complete(launch, config, tell)


def complete(
    launch: Launch, config: BuildConfig, tell: Callable[[Status], None] | None = None
) -> Manifest:
    """Runs a launched job to its end, as `build_quietly` does; returns its manifest."""
    # Beam's log repeats with tracebacks what ends in one sentence.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL + 1)
    try:
        submitted = execute(launch, config, partial(_telling, tell))
    except Exception as error:
        explained = explain(error)
        if explained is None or explained is error:
            raise
        raise explained from error
    if submitted is not None:
        waited = "" if config.share else "It is not waited for, so there"
        raise FineshardsError(f"{submitted}. {waited or 'There'} is no manifest yet.")
    return finished(launch)


def _telling(
    tell: Callable[[Status], None] | None, storage: Storage
) -> AbstractContextManager[None]:
    if tell is None:
        return nullcontext()
    from fineshards.job_status.progress_words import looking
    from fineshards.job_status.status import StatusReader

    return looking(StatusReader(storage, from_now=True), tell)


@naming_the_extra()
def prepare(config: BuildConfig) -> Launch:
    """Calls `pipeline.launch`, imported late so that --help and wrong flags are fast."""
    choice.refuse_other_workers(config)
    share_of(config)
    if config.beam_args and own_process.alone and choice.runs_here(config):
        # Checking needs Beam, and workers are forked from a process without it.
        call_in_fresh_interpreter(choice.check_beam_args, config)
    else:
        choice.check_beam_args(config)
    if dataflow.runs_on_dataflow(config):
        dataflow.refuse_impossible(config)
    from fineshards.pipeline.append import prepare_append
    from fineshards.pipeline.launch import prepare

    return prepare_append(config) if config.append else prepare(config)


def execute(launch: Launch, config: BuildConfig, working: _Working) -> str | None:
    """Runs a launched job to its end.

    working: wraps the run, to show progress. A local run in a process that does other things too
    does all its work in the calling thread.

    Returns None, or, for a job that is not waited for, a sentence that says what became of it.
    Raises whatever the runner raises. An input that cannot be used leaves nothing behind.
    """
    try:
        return _execute(launch, config, working)
    except Exception as error:
        # A share never knows whether others have begun.
        if isinstance(explain(error), InputError | UsageError) and not config.share:
            from fineshards.pipeline import append, output_folder

            with suppress(FineshardsError):  # the input is what the user should hear of
                if launch.earlier:
                    append.withdraw(launch)
                elif launch.manifest is None:
                    output_folder.withdraw(launch.checkpoints.storage, launch.job, launch.made)
        raise


def _execute(launch: Launch, config: BuildConfig, working: _Working) -> str | None:
    from fineshards.worker.documents import document_encoder
    from fineshards.worker.work import Work

    storage = launch.checkpoints.storage
    here, share = choice.runs_here(config), share_of(config)
    # Workers that are forked later share it, and a warning that it is slow is given once.
    document_encoder(launch.job.settings, storage, config.tokenizer_engine)
    if not dataflow.runs_on_dataflow(config):
        RemoteRun.forget(storage, launch.checkpoints.folder)
    if share is not None:
        return _run_share(launch, config, share, working)
    work = Work.of(launch.checkpoints, launch.job, config, launch.earlier, inline=not here)
    if here:
        with (
            held_lock(storage, work.checkpoints.folder),
            claimed_shards(storage, work.checkpoints.folder) as alone,
            _pool(launch, work, config, work.checkpoints.files_to_read(), alone),
            working(storage),
        ):
            _run_here(launch, config, lambda root: _build_graph(root, launch, work, config))
        return None
    forget(storage, launch.checkpoints.folder)
    with working(storage), choice.temporary_files_of_beam(here):
        if dataflow.runs_on_dataflow(config):
            pipeline = dataflow.new_pipeline(config)
        else:
            from fineshards.pipeline.runners import portable

            pipeline = choice.new_pipeline(portable.DescribedOptions(list(config.beam_args)))
        _build_graph(pipeline, launch, work, config)
        if dataflow.runs_on_dataflow(config):
            return dataflow.submit(pipeline, storage.root, partial(_note_run, launch, config))
        portable.submit(pipeline, storage.root)
    return None


def _note_run(launch: Launch, config: BuildConfig, run: RemoteRun) -> None:
    """Notes where a job runs, for `status`."""
    if committed(launch) is None:
        run.save(launch.checkpoints.storage, launch.checkpoints.folder)
        # It may have ended meanwhile, and have deleted its checkpoints before that.
        if committed(launch) is not None and not config.keep_checkpoints:
            launch.checkpoints.clear()


def _run_share(launch: Launch, config: BuildConfig, share: Share, working: _Working) -> str:
    """Does a share of what comes next in a job; returns a sentence that says what is left."""
    from fineshards.job_status.status import StatusReader
    from fineshards.worker.work import Work

    storage, job = launch.checkpoints.storage, launch.job
    status = StatusReader(storage).read()
    part = part_of(status)
    if share.does(part):
        work = Work.of(launch.checkpoints, job, config)
        with (
            held_lock(storage, launch.checkpoints.folder),
            _pool(launch, work, config, (), alone=False),
            working(storage),
        ):
            from fineshards.pipeline.graph import build_share

            stage = [(stage.name, stage.state) for stage in status.stages].count(("judge", "done"))
            _run_here(launch, config, lambda root: build_share(root, work, share, part, stage))
        if committed(launch) is not None and not config.keep_checkpoints:
            # The dataset was finished meanwhile, and nothing else deletes what came after.
            launch.checkpoints.clear()
        status = StatusReader(storage).read()
    return describe_left(share, status)


def finished(launch: Launch) -> Manifest:
    """Returns the manifest that a job has written; raises FineshardsError if there is none."""
    storage, manifest = launch.checkpoints.storage, committed(launch)
    if manifest is None:
        raise FineshardsError(
            f"the runner says that the job is done, but {storage.path(MANIFEST_NAME)} is not "
            "there, so the dataset is not finished. See the runner's log, and run again."
        )
    return manifest


def committed(launch: Launch) -> Manifest | None:
    """The manifest that a job has written; None if it has not."""
    manifest = Manifest.load(launch.checkpoints.storage)
    # An append finds that of the generation before.
    return manifest if manifest and manifest.generation >= launch.job.generation else None


def _pool(
    launch: Launch, work: Work, config: BuildConfig, files: Sequence[SourceFile], alone: bool
) -> AbstractContextManager[object]:
    """The workers of a job, in a process of its own. files: whose blocks they begin with."""
    from fineshards.worker.pool import Pool

    if not own_process.alone:
        return nullcontext()
    return Pool(work, config.workers or usable_cores(), files, launch.resumes, alone)


def _run_here(launch: Launch, config: BuildConfig, add: Callable[[Pipeline], None]) -> None:
    """Runs the job on this machine; add: adds its steps to a pipeline."""
    pipeline = choice.local_pipeline(config)
    add(pipeline)
    own_process.collect_garbage_again()
    try:
        pipeline.run().wait_until_finish()
    except Exception:
        # A second launch of the same job may have finished it and deleted the checkpoints that
        # this one was reading.
        if committed(launch) is None:
            raise
        if not config.keep_checkpoints:
            launch.checkpoints.clear()


def _build_graph(pipeline: Pipeline, launch: Launch, work: Work, config: BuildConfig) -> None:
    import apache_beam as beam

    from fineshards.pipeline.graph import build_pipeline

    if launch.manifest is not None and choice.launches_template(config):
        # A template's launcher must start a job even if there is nothing to do.
        _ = pipeline | "AlreadyFinished" >> beam.Create([MANIFEST_NAME])
    else:
        build_pipeline(pipeline, work)
