"""What steps are made of: the DoFn that does one task per element, lists of all, and counters.

In a local run the tasks are done by the pool's processes. Elsewhere the runner's worker does each
task when it gets the element.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows

from fineshards.worker.pool import current_pool
from fineshards.worker.tasks import Task
from fineshards.worker.work import Work
from fineshards.worker.worker import Worker


class StepMetrics:
    """The counters of one step, in the namespace `fineshards.<step>`, for people to watch.

    They count attempts, retries included. The dataset's totals come from the records instead.
    """

    def __init__(self, step: str) -> None:
        self._namespace = f"fineshards.{step}"

    def count(self, **amounts: int) -> None:
        """Adds to counters, such as `count(blocks_in=1, tokens_out=4711)`."""
        for name, amount in amounts.items():
            Metrics.counter(self._namespace, name).inc(amount)


class JobStep(beam.PTransform):
    """A step of the graph, which knows the job's work."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def expand(self, input_or_inputs: Any) -> Any:
        """Builds the step."""
        raise NotImplementedError


class RunTasks(beam.DoFn):
    """Turns each element into a task, and each task into one result."""

    def __init__(self, metrics: StepMetrics, work: Work) -> None:
        self._metrics = metrics
        self._work = work

    def task(self, element: Any, *side: Any) -> Task:
        """The task of an element."""
        raise NotImplementedError

    def counts(self, element: Any, result: Any) -> dict[str, int]:
        """What to add to the step's counters for an element."""
        raise NotImplementedError

    def setup(self) -> None:
        self._worker = Worker(self._work)

    def start_bundle(self) -> None:
        self._pending: list[tuple[Any, Task]] = []

    def process(self, element: Any, *side: Any) -> Iterator[Any]:
        task, pool = self.task(element, *side), current_pool()
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
        counts = self.counts(element, result)
        self._metrics.count(milliseconds=round(seconds * 1000), **counts)
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
            | "List" >> beam.Map(_all, beam.pvalue.AsIter(elements))
        )


def _all(_: None, elements: Iterable[Any]) -> list[Any]:
    return list(elements)


def listed(key: Any, values: Iterable[Any]) -> tuple[Any, list[Any]]:
    """A group with a list: some runners allow only one read of it, and only where it arrived."""
    return key, list(values)
