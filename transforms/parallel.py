"""Steps whose elements are worked on by several threads of one worker.

On one machine a single worker with a thread a core does better than Beam's own local workers: they
divide a step's elements among them before it begins, so that one may be idle while another has half
of its share left, and they talk to each other over gRPC. The work is Arrow's, gigatoken's and the
kernel's, which release the interpreter lock. On other runners every worker has its own share and
one thread of its own is enough.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from transforms.metrics import StepMetrics


class ParallelDoFn(beam.DoFn):
    """Turns each element into one result by `work`, in `threads` threads.

    A bundle ends when all of its elements are done; the first that fails makes it fail, and those
    that have not begun by then are dropped.
    """

    def __init__(self, metrics: StepMetrics, threads: int) -> None:
        self._metrics = metrics
        self._threads = threads

    def work(self, element: Any, *side: Any) -> Any:
        """The result of an element; called in any thread, of several at once."""
        raise NotImplementedError

    def counts(self, element: Any, result: Any) -> dict[str, int]:
        """What to add to the step's counters for an element."""
        raise NotImplementedError

    def start_bundle(self) -> None:
        """Called by Beam."""
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None
        self._pending: list[Future[tuple[Any, Any, float]]] = []

    def process(self, element: Any, *side: Any) -> Iterator[Any]:
        """Called by Beam for each element."""
        if self._pool is None:
            yield self._counted(*self._timed(element, *side))
        else:
            self._pending.append(self._pool.submit(self._timed, element, *side))

    def finish_bundle(self) -> Iterator[Any]:
        """Called by Beam; waits for what is not done yet."""
        if self._pool is None:
            return
        try:
            for future in self._pending:
                yield GlobalWindows.windowed_value(self._counted(*future.result()))
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _timed(self, element: Any, *side: Any) -> tuple[Any, Any, float]:
        began = time.monotonic()
        return element, self.work(element, *side), time.monotonic() - began

    def _counted(self, element: Any, result: Any, seconds: float) -> Any:
        # Beam's counters belong to the thread that it calls, so not in `work`.
        counts = self.counts(element, result)
        self._metrics.count(milliseconds=round(seconds * 1000), **counts)
        return result
