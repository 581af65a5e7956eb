"""What steps are made of: the DoFn that does one task per element, lists of all, and counters.

In a local run the tasks are done by the pool's processes. Elsewhere the runner's worker does each
task when it gets the element.

Modules in this folder do without `from __future__ import annotations`: Beam reads the annotations
of functions to choose coders, and takes a textual annotation for Any.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows

from fineshards.worker.pool import current_pool
from fineshards.worker.tasks import Task, Worker
from fineshards.worker.work import Work


def count(step: str, **amounts: int) -> None:
    """Adds to counters of a step, such as `count("tokenize", blocks_in=1)`, for people to watch.

    They count attempts, retries included. The dataset's totals come from the records instead.
    """
    for name, amount in amounts.items():
        Metrics.counter(f"fineshards.{step}", name).inc(amount)


class JobStep(beam.PTransform):
    """A step of the graph, which knows the job's work."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def expand(self, input_or_inputs: Any) -> Any:
        """Builds the step."""
        raise NotImplementedError


class RunTasks(beam.DoFn):
    """Turns each element into a task, and each task into one result.

    step: whose counters count. task: makes the task of an element and of side inputs. counts: what
    else to count of an element and its result.
    """

    def __init__(
        self,
        step: str,
        work: Work,
        task: Callable[..., Task],
        counts: Callable[[Any, Any], dict[str, int]] = lambda element, result: {},
    ) -> None:
        self._step = step
        self._work = work
        self._task = task
        self._counts = counts

    def setup(self) -> None:
        self._worker = Worker(self._work)

    def start_bundle(self) -> None:
        self._pending: list[tuple[Any, Task]] = []

    def process(self, element: Any, *side: Any) -> Iterator[Any]:
        task, pool = self._task(element, *side), current_pool()
        if pool is not None:
            # Not waited for here, so that all processes have work.
            pool.submit(task)
            self._pending.append((element, task))
            return
        began = time.monotonic()
        result = task.run(self._worker)
        yield self._counted(element, result, time.monotonic() - began)

    def finish_bundle(self) -> Iterator[Any]:
        """Called by Beam; waits for the tasks of the bundle."""
        pool = current_pool()
        for element, task in self._pending:
            assert pool is not None
            yield GlobalWindows.windowed_value(self._counted(element, *pool.result(task)))

    def _counted(self, element: Any, result: Any, seconds: float) -> Any:
        amounts = self._counts(element, result)
        count(self._step, tasks=1, milliseconds=round(seconds * 1000), **amounts)
        return result


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
            | "List" >> beam.Map(lambda _, every: list(every), beam.pvalue.AsIter(elements))
        )


class GroupLists(beam.PTransform):
    """Lists of values by key: some runners allow only one read of a group, where it arrived."""

    def expand(self, pairs: beam.PCollection) -> beam.PCollection:
        """Builds the step."""
        return pairs | "Group" >> beam.GroupByKey() | "Listed" >> beam.MapTuple(_listed)


def _listed(key: Any, values: Iterable[Any]) -> tuple[Any, list[Any]]:
    return key, list(values)
