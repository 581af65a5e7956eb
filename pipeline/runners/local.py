"""Beam's Python runner on this machine: its quirks, mended from outside."""

from __future__ import annotations

import os
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import userstate

# Beam's own is 200.
_SAMPLING_MILLISECONDS = 5


class CachedOptions(PipelineOptions):
    """Options that make each view of themselves once.

    Beam looks at its options several times for every transform, and each look parses all flags of
    all kinds of options: two thirds of the time that it takes to build a graph. Views of one object
    share its values, so one view of a kind does.
    """

    def view_as(self, cls: type) -> Any:
        """See PipelineOptions."""
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


def mend_runner() -> None:
    """Switches off what the runner does for other jobs than ours, and what does harm."""
    # Beam looks through all methods of a step, by reflection, several times, for state and timers.
    # Our steps have none.
    userstate.get_dofn_specs = _no_state
    # A thread notes what a step is doing in longer and longer intervals, and the end of a step
    # waits for the last of them.
    statesampler.StateSampler.__init__.__defaults__ = (_SAMPLING_MILLISECONDS,)
    # The rest is for Beam's own local workers; ours has no use for gRPC.
    # gRPC would send even what stays on this machine to the proxy that the environment names, where
    # it fails after a minute.
    os.environ.setdefault("no_grpc_proxy", "localhost,127.0.0.1")
    # A thread of Beam 2.77 flushes buffers that another one is writing to, without a lock
    # (TimeBasedBufferingClosableOutputStream): with it elements were cut in two or jobs hung in our
    # measurements; without it, never. Buffers are then flushed by size and at the end.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0


def _no_state(_dofn: Any) -> tuple[set[Any], set[Any]]:
    return set(), set()
