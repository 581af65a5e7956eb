"""Jobs on Google Cloud Dataflow: what is refused at once, what is set, and what comes of them."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import TYPE_CHECKING

from fineshards.config import BuildConfig
from fineshards.errors import FineshardsError, UsageError
from fineshards.pipeline.options import runner_name
from fineshards.pipeline.runners import choice as runners

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions


def runs_on_dataflow(config: BuildConfig) -> bool:
    """Whether Dataflow is asked for; quick, without Beam."""
    return runner_name(config.beam_args) == "dataflow"


def refuse_impossible(config: BuildConfig) -> None:
    """Raises UsageError for a job that Dataflow's workers could never do.

    They would try for an hour, since Dataflow repeats what fails, and what they say is in a log.
    """
    from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

    local = [("--output", config.folder), *(("--input", path) for path in config.patterns)]
    if config.dataset and os.path.isdir(config.dataset):
        local.append(("--dataset", config.dataset))
    for flag, path in local:
        if "://" not in path:
            raise UsageError(
                f"{flag} {path} is on this machine, where Dataflow's workers cannot reach it; "
                "copy it to gs://bucket/folder and name that."
            )
    given = PipelineOptions(list(config.beam_args))
    setup = given.view_as(SetupOptions)
    if not (
        given.view_as(WorkerOptions).sdk_container_image or setup.setup_file or setup.extra_packages
    ):
        raise UsageError(
            "the workers need an image with this program in it: name it with "
            "--sdk_container_image. docs/dataflow.md says how to build it."
        )


def dataflow_defaults(config: BuildConfig) -> tuple[str, ...]:
    """Beam's options as they are always right for this job; those that the user gives win.

    - Without a name of its own a job is named after its output, because Dataflow refuses a second
      job of the same name while the first is active: nobody pays twice for one dataset.
    - Nothing of `__main__` is needed on workers, so it is not pickled and staged, which is
      Dataflow's default (pipeline_options.py of Beam 2.77, _handle_load_main_session).
    - Beam is in the image already: workers must not fetch and install it again when they start.
    """
    digest = hashlib.sha256(config.folder.rstrip("/").encode()).hexdigest()
    defaults = [f"--job_name=fineshards-{digest[:12]}", "--no_save_main_session"]
    if any(arg.split("=")[0] == "--sdk_container_image" for arg in config.beam_args):
        defaults.append("--sdk_location=container")
    return tuple(defaults)


def new_pipeline(config: BuildConfig) -> Pipeline:
    """An empty pipeline; raises UsageError for what Beam has against the options."""
    from apache_beam.options.pipeline_options import PipelineOptions

    _be_quiet()
    _go_without_credentials()
    return runners.new_pipeline(PipelineOptions([*dataflow_defaults(config), *config.beam_args]))


def submit(pipeline: Pipeline, root: str) -> str | None:
    """Hands the job over and waits until it has ended well, which is None.

    Where it is not to be waited for: what has become of it, as a sentence. root: of the output.
    Raises what Beam does if the job ends otherwise, and FineshardsError if a person stops waiting.
    """
    running = pipeline.run()
    if came_of_it := _not_waited_for(pipeline.options):
        return f"{came_of_it}. See fineshards status {root}"
    try:
        running.wait_until_finish()
    except KeyboardInterrupt:
        raise FineshardsError(
            "interrupted, but the job goes on at Dataflow; see fineshards status "
            f"{root}, and cancel it with gcloud dataflow jobs cancel."
        ) from None
    return None


def _be_quiet() -> None:
    """Leaves out of Beam's log what fills screens: all options and the job as the service has it.

    Its address in the console and its states stay.
    """
    log = logging.getLogger("apache_beam.runners.dataflow.internal.apiclient")
    log.addFilter(lambda record: not record.msg.startswith(("sdk_pipeline_options", "Create job")))


def _go_without_credentials() -> None:
    """With STORAGE_EMULATOR_HOST in the environment Beam does not look for Google's credentials.

    It would ask for them five times, for 25 seconds in all, before it goes on without. Our own
    client of Cloud Storage does not ask then (`fineshards.storage.gcs_objects`).
    """
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        from apache_beam.internal.gcp import auth

        # What it finds is kept here; the marker alone means that it has looked and found nothing.
        auth._Credentials._credentials_init = True


def _not_waited_for(options: PipelineOptions) -> str | None:
    """What has become of a pipeline that was run and need not be waited for; None: wait for it."""
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        StandardOptions,
        TestOptions,
    )

    google = options.view_as(GoogleCloudOptions)
    if google.template_location:
        return f"the job is described in {google.template_location}, and Dataflow starts it now"
    if options.view_as(TestOptions).dry_run:
        return "dry run: the graph is sound, and nothing was started"
    if options.view_as(StandardOptions).no_wait_until_finish:
        return f"started {google.job_name or 'the job'}"
    return None
