"""Jobs on Google Cloud Dataflow: checks before submission, defaults, submission, outcome."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fineshards.config import BuildConfig
from fineshards.errors import FineshardsError, UsageError
from fineshards.extras import require
from fineshards.pipeline.runners import choice as runners
from fineshards.shards.job.runs import RemoteRun

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

_DISK_SIZE_GB = 50
# The launcher of a template has the id of its job in the place of its job file alone.
_TEMPLATE_LAUNCH = re.compile(r"/template_launches/(\d{4}-[-\d_]+)/[^/]+")


def runs_on_dataflow(config: BuildConfig) -> bool:
    """Whether the job is for Dataflow. Does not import Beam."""
    return runners.runner_name(config.beam_args) == "dataflow"


def refuse_impossible(config: BuildConfig) -> None:
    """Raises UsageError for a job that Dataflow's workers can never finish.

    Dataflow retries what fails, so they would try for an hour, and their errors are in a log.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

    local = [("--output", config.folder), *(("--input", path) for path in config.patterns)]
    local += [("--test_input", path) for path in config.test_patterns]
    if config.dataset and os.path.isdir(config.dataset):
        local.append(("--dataset", config.dataset))
    for flag, path in local:
        if "://" not in path:
            raise UsageError(
                f"{flag} {path} is on this machine, where Dataflow's workers cannot reach it. Use "
                "a folder on Cloud Storage: gs://bucket/folder."
            )
    require("google.cloud.dataflow", "google-cloud-dataflow-client", "dataflow")
    given = PipelineOptions(list(config.beam_args))
    setup = given.view_as(SetupOptions)
    if not (
        given.view_as(WorkerOptions).sdk_container_image or setup.setup_file or setup.extra_packages
    ):
        raise UsageError(
            "Dataflow's workers need a container image with fineshards in it. Build it as "
            "docs/cloud.md describes, and name it with --sdk_container_image."
        )


def dataflow_defaults(config: BuildConfig) -> tuple[str, ...]:
    """Defaults for Beam's options; the user's own values take precedence.

    - A job without a name is named after its output. Dataflow refuses a second job of the same name
      while the first is active, so no one pays twice for one dataset.
    - Workers need nothing of `__main__`, so it is not pickled and staged, which is Dataflow's
      default (pipeline_options.py of Beam 2.77, _handle_load_main_session).
    - Beam is in the image, so workers must not download and install it when they start.
    - The disk holds the image and what waits for its upload (docs/cloud.md). Dataflow's own
      default may be too small, and a template's launch does not apply the defaults in its metadata.
    """
    digest = hashlib.sha256(config.folder.rstrip("/").encode()).hexdigest()
    defaults = [
        f"--job_name=fineshards-{digest[:12]}",
        "--no_save_main_session",
        f"--disk_size_gb={_DISK_SIZE_GB}",
    ]
    if config.workers is not None:
        defaults.append(f"--num_workers={config.workers}")
    if any(arg.split("=")[0] == "--sdk_container_image" for arg in config.beam_args):
        defaults.append("--sdk_location=container")
    return tuple(defaults)


def new_pipeline(config: BuildConfig) -> Pipeline:
    """An empty pipeline; raises UsageError for options that Beam rejects."""
    from apache_beam.options.pipeline_options import PipelineOptions

    _skip_credentials_for_emulator()
    return runners.new_pipeline(PipelineOptions([*dataflow_defaults(config), *config.beam_args]))


def submit(
    pipeline: Pipeline, root: str, note: Callable[[RemoteRun], None] = lambda run: None
) -> str | None:
    """Submits the job and waits for it; root: the output folder.

    note: called with where the job runs, once that is known.

    Returns None when the job is done, or, for a job that is not waited for, a sentence that says
    what happened to it. Raises what Beam raises if the job fails, and FineshardsError if the user
    stops waiting.
    """
    running = pipeline.run()
    if run := _run_of(pipeline.options, running):
        note(run)
    if outcome := _outcome_without_waiting(pipeline.options):
        return f"{outcome}. See fineshards status {root}"
    try:
        running.wait_until_finish()
    except KeyboardInterrupt:
        raise FineshardsError(
            f"interrupted, but the job continues on Dataflow. See fineshards status {root}, or "
            "cancel it with gcloud dataflow jobs cancel."
        ) from None
    return None


def _run_of(options: PipelineOptions, running: Any) -> RemoteRun | None:
    """Where a job runs that was submitted; None if none was."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions

    google = options.view_as(GoogleCloudOptions)
    if options.view_as(TestOptions).dry_run:
        return None
    if google.template_location:
        match = _TEMPLATE_LAUNCH.search(google.template_location)
        job_id = match and match[1]
    else:
        job_id = running.job_id()
    return RemoteRun.on_dataflow(job_id, google.project, google.region) if job_id else None


def _skip_credentials_for_emulator() -> None:
    """Keeps Beam from looking for Google credentials if STORAGE_EMULATOR_HOST is set.

    Beam would ask five times, for 25 seconds in all, before it continues without credentials. Our
    own client of Cloud Storage does not ask (`fineshards.storage.gcs`).
    """
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        from apache_beam.internal.gcp import auth

        # The marker without credentials means that Beam has looked for them and found none.
        auth._Credentials._credentials_init = True


def _outcome_without_waiting(options: PipelineOptions) -> str | None:
    """What happened to a pipeline that is not waited for; None if it is."""
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        StandardOptions,
        TestOptions,
    )

    google = options.view_as(GoogleCloudOptions)
    if google.template_location:
        return f"wrote the job to {google.template_location}, from where Dataflow starts it"
    if options.view_as(TestOptions).dry_run:
        return "dry run: the graph is valid, and nothing was started"
    if options.view_as(StandardOptions).no_wait_until_finish:
        return f"started {google.job_name or 'the job'}"
    return None
