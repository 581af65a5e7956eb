"""Runners that submit the job to a job service, such as Flink's and Spark's."""

import logging
import re
import traceback
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from requests import RequestException

from fineshards.errors import FineshardsError, UsageError
from fineshards.pipeline.beam_errors import explain
from fineshards.pipeline.runners.choice import refuse_unknown

_log = logging.getLogger("fineshards")
# Modules of Beam that start a service or talk to one.
_SERVICES = re.compile(r"/runners/portability/\w+\.py$|/utils/subprocess_server\.py$")
# Where the advice of Beam's messages begins, which is for its own developers.
_ADVICE = re.compile(r"\.? (Also failed|If (no|using)|The Prism Binary|Alternatively,|Please )")


class DescribedOptions(PipelineOptions):
    """Options that include those of the job service, which Beam asks for before it submits the job.

    Beam drops unknown flags with a warning. One may be ours, misspelt: here it is an error.
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

    Raises UsageError if no job service takes it, and FineshardsError if the user stops waiting.
    """
    _log.info("waiting for the job service")
    try:
        running = pipeline.run()
    except Exception as error:
        if explain(error) is None and (reason := _of_service(error, pipeline)):
            raise UsageError(reason) from error
        raise
    try:
        running.wait_until_finish()
    except KeyboardInterrupt:
        # The job is not cancelled: on a cancel, Beam's job service for Flink only stops watching.
        raise FineshardsError(
            "interrupted, but the job continues unless its workers ran in this process. See "
            f"fineshards status {root}, or cancel it where it runs."
        ) from None


def _of_service(error: Exception, pipeline: beam.Pipeline) -> str | None:
    """What to say if no service takes a job; None if the error is of something else."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if not _SERVICES.search(next((name for name in files[::-1] if "/apache_beam/" in name), "")):
        return None
    runner, options = type(pipeline.runner).__name__, pipeline.options.view_as(PortableOptions)
    reason = _ADVICE.split(" ".join(str(error).split()))[0].rstrip(".")
    if isinstance(error, grpc.FutureTimeoutError):
        reason = f"{options.job_endpoint} does not answer within {options.job_server_timeout} s"
    elif isinstance(error, grpc.RpcError):
        reason = f"{options.job_endpoint} answers: {error.details()}"
    elif isinstance(error, RequestException) and error.request and error.response is None:
        reason = str(error.request.url) + " does not answer"
    return (
        f"{runner} has no job service: {reason}. Give the address of one that runs, as "
        "--job_endpoint=HOST:PORT. See docs/cloud.md."
    )
