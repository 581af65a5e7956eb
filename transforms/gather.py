"""All elements of a collection in one list."""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam


class Gather(beam.PTransform):
    """One list of all elements, in no order. Without elements there is no list, not an empty one.

    `beam.combiners.ToList` covers that case with a dozen more transforms, each of which costs a
    local run some milliseconds.
    """

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            elements
            | "Together" >> beam.Map(_keyed)
            | "Group" >> beam.GroupByKey()
            | "List" >> beam.MapTuple(_listed)
        )


def _keyed(element: Any) -> tuple[None, Any]:
    return None, element


def _listed(_: None, elements: Iterable[Any]) -> list[Any]:
    return list(elements)
