"""Beam's Python runner on this machine: its quirks, mended from outside."""

from __future__ import annotations

import os
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers


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


def mend_workers() -> None:
    """What Beam's local workers need when a person asks for them; ours has no use for gRPC."""
    # gRPC would send even what stays on this machine to the proxy that the environment names, where
    # it fails after a minute.
    os.environ.setdefault("no_grpc_proxy", "localhost,127.0.0.1")
    # A thread of Beam 2.77 flushes buffers that another one is writing to, without a lock
    # (TimeBasedBufferingClosableOutputStream): with it elements were cut in two or jobs hung in our
    # measurements; without it, never. Buffers are then flushed by size and at the end.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
