"""All elements of a collection in one list."""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam


class Gather(beam.PTransform):
    """One list of all elements, in no order; an empty one if there are none.

    `beam.combiners.ToList` does the same with a dozen more transforms, each of which costs a local
    run some milliseconds.
    """

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return (
            elements.pipeline
            | "One" >> beam.Create([None], reshuffle=False)
            | "List" >> beam.Map(_all, beam.pvalue.AsIter(elements))
        )


def _all(_: None, elements: Iterable[Any]) -> list[Any]:
    return list(elements)


def listed(key: Any, values: Iterable[Any]) -> tuple[Any, list[Any]]:
    """A group with a list: some runners allow only one read of it, and only where it arrived."""
    return key, list(values)
