"""Options of Beam that are parsed once, for its Python runner on this machine."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions


class CachedOptions(PipelineOptions):
    """Options that create each of their views once.

    Beam reads its options several times for every transform, and each time parses all flags of all
    option classes: two thirds of the time to build a graph. The views of one object share its
    values, so one view per class is enough.
    """

    def view_as(self, cls: type) -> Any:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]
