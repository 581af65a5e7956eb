"""Runners that submit the job to a job service, such as Flink's and Spark's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineResult

from fineshards.errors import FineshardsError, UsageError
from fineshards.pipeline.beam_flags import refuse_unknown

# How Beam's messages begin if there is no job service; the exception types vary.
_NO_SERVICE = (
    "Unable to fetch remote prism binary",
    "Unable to parse jar URL",
    "You must specify a --job_endpoint",
)


class DescribedOptions(PipelineOptions):
    """Options that include those of the job service, which describes them on request.

    Beam asks the service just before it submits the job (`JobServiceHandle.get_pipeline_options`),
    and drops flags that are still unknown with a warning. Such a flag may be one of ours, misspelt,
    without which a different dataset would be built. So here it is an error.
    """

    def get_all_options(
        self,
        drop_default: bool = False,
        add_extra_args_fn: Callable[[Any], None] | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        """See PipelineOptions. Raises UsageError for an unknown flag."""
        if add_extra_args_fn is not None:
            refuse_unknown(self._flags, add_extra_args_fn)
        options: dict[str, Any] = super().get_all_options(drop_default, add_extra_args_fn, **others)
        return options


def submit(pipeline: beam.Pipeline, root: str) -> None:
    """Submits a job that writes to `root`, and waits for it.

    Raises UsageError if no job service takes it, FineshardsError if the user stops waiting, and
    what Beam raises if the job fails.
    """
    running = _run(pipeline)
    try:
        running.wait_until_finish()
    except KeyboardInterrupt:
        # The job is not cancelled: on a cancel, Beam's job service for Flink only stops watching.
        raise FineshardsError(
            "interrupted, but the job continues unless its workers ran in this process. See "
            f"fineshards status {root}, or cancel it where it runs."
        ) from None


def _run(pipeline: beam.Pipeline) -> PipelineResult:
    try:
        return pipeline.run()
    except grpc.FutureTimeoutError:
        portable = pipeline.options.view_as(PortableOptions)
        raise UsageError(
            f"no job service answered at {portable.job_endpoint} within "
            f"{portable.job_server_timeout} s. Start one, or give another --job_endpoint."
        ) from None
    except Exception as error:
        if str(error).startswith(_NO_SERVICE):
            raise UsageError(f"{str(error).rstrip('.')}. See docs/cloud.md.") from error
        raise
