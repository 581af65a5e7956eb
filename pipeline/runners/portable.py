"""Runners that hand the job to a job service, such as Flink's and Spark's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.runners.runner import PipelineResult

from fineshards.errors import FineshardsError, UsageError
from fineshards.pipeline.options import refuse_unknown

# How Beam begins to say that there is no job service, with the exception's type as it chose it.
_NO_SERVICE = (
    "Unable to fetch remote prism binary",
    "Unable to parse jar URL",
    "You must specify a --job_endpoint",
)


class DescribedOptions(PipelineOptions):
    """Options of which some are known only to the job service, which describes them when asked.

    Beam asks it just before it submits the job (`JobServiceHandle.get_pipeline_options`), and
    discards with a warning what is unknown even then. That may be a misspelt flag of ours, without
    which another dataset would be built, so here it is an error.
    """

    def get_all_options(
        self,
        drop_default: bool = False,
        add_extra_args_fn: Callable[[Any], None] | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        """See PipelineOptions. Raises UsageError for a flag that nobody knows."""
        if add_extra_args_fn is not None:
            refuse_unknown(self._flags, add_extra_args_fn)
        options: dict[str, Any] = super().get_all_options(drop_default, add_extra_args_fn, **others)
        return options


def submit(pipeline: beam.Pipeline, root: str) -> None:
    """Hands a job that writes to `root` over and waits for it.

    Raises UsageError if there is nobody to take it, FineshardsError if a person stops waiting, and
    what Beam raises if it fails.
    """
    running = _hand_over(pipeline)
    try:
        running.wait_until_finish()
    except KeyboardInterrupt:
        # It is not cancelled: Beam's job service for Flink, asked to, stops watching and no more.
        raise FineshardsError(
            "interrupted, but unless its workers were in this process, the job goes on; see "
            f"fineshards status {root}, or cancel it where it runs."
        ) from None


def _hand_over(pipeline: beam.Pipeline) -> PipelineResult:
    try:
        return pipeline.run()
    except grpc.FutureTimeoutError:
        portable = pipeline.options.view_as(PortableOptions)
        raise UsageError(
            f"no job service answers at {portable.job_endpoint} within "
            f"{portable.job_server_timeout} seconds. Start it, or give another --job_endpoint."
        ) from None
    except Exception as error:
        if str(error).startswith(_NO_SERVICE):
            raise UsageError(f"{str(error).rstrip('.')}. See docs/runners.md.") from error
        raise
