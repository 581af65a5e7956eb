"""Beam's Python runner on this machine, patched for speed and safety."""

from __future__ import annotations

import os
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import userstate

# Beam's default is 200.
_SAMPLING_MILLISECONDS = 5


class CachedOptions(PipelineOptions):
    """Options that create each of their views once.

    Beam reads its options several times for every transform, and each time parses all flags of all
    option classes: two thirds of the time to build a graph. The views of one object share its
    values, so one view per class is enough.
    """

    def view_as(self, cls: type) -> Any:
        """See PipelineOptions."""
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def patch_runner() -> None:
    """Switches off features of the runner that this job does not need, and one that is harmful."""
    # Beam searches all methods of a step for state and timers, by reflection, several times. Our
    # steps have none.
    userstate.get_dofn_specs = _no_state
    # A thread samples the state of a step at growing intervals, and the end of the step waits for
    # the last interval.
    statesampler.StateSampler.__init__.__defaults__ = (_SAMPLING_MILLISECONDS,)
    # The rest is for Beam's other running modes, whose workers use gRPC.
    # gRPC would use the environment's proxy even for this machine, and fail after a minute.
    os.environ.setdefault("no_grpc_proxy", "localhost,127.0.0.1")
    # A thread of Beam 2.77 flushes buffers while another one writes to them, without a lock
    # (TimeBasedBufferingClosableOutputStream). In our measurements elements were cut in two or jobs
    # hung with it, and never without it. Buffers are then flushed by size and at the end.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0


def _no_state(_dofn: Any) -> tuple[set[Any], set[Any]]:
    return set(), set()
