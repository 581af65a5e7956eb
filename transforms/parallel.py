"""Steps that process their elements in several threads of one worker.

On one machine a single worker with one thread per core beats Beam's own local workers. They divide
a step's elements before it begins, so one may be idle while another has half of its share left, and
they communicate over gRPC. The work is done by Arrow, gigatoken and the kernel, which release the
interpreter lock. On other runners each worker has its own share, and one thread is enough.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from fineshards.transforms.metrics import StepMetrics


class ParallelDoFn(beam.DoFn):
    """Turns each element into one result with `work`, in `threads` threads.

    With several threads, a bundle's elements are processed once all of them have arrived. The first
    failure fails the bundle, and elements not yet begun are dropped.
    """

    def __init__(self, metrics: StepMetrics, threads: int) -> None:
        self._metrics = metrics
        self._threads = threads

    def work(self, element: Any, *side: Any) -> Any:
        """Returns the result of an element. Several threads call it at once."""
        raise NotImplementedError

    def counts(self, element: Any, result: Any) -> dict[str, int]:
        """What to add to the step's counters for an element."""
        raise NotImplementedError

    def start_bundle(self) -> None:
        """Called by Beam."""
        self._waiting: list[tuple[Any, ...]] = []

    def process(self, element: Any, *side: Any) -> Iterator[Any]:
        """Called by Beam for each element."""
        if self._threads > 1:
            self._waiting.append((element, *side))
        else:
            yield self._counted(*self._timed(element, *side))

    def finish_bundle(self) -> Iterator[Any]:
        """Called by Beam; processes the waiting elements."""
        if not self._waiting:
            return
        shares = Shares(self._waiting, self._threads)
        with ThreadPoolExecutor(self._threads) as pool:
            try:
                threads = [pool.submit(self._do, shares, n) for n in range(self._threads)]
                done = [result for thread in threads for result in thread.result()]
            finally:
                shares.drop()
        for result in done:
            yield GlobalWindows.windowed_value(self._counted(*result))

    def _do(self, shares: "Shares", number: int) -> list[tuple[Any, Any, float]]:
        try:
            return [self._timed(*arguments) for arguments in shares.of(number)]
        except BaseException:
            shares.drop()
            raise

    def _timed(self, element: Any, *side: Any) -> tuple[Any, Any, float]:
        began = time.monotonic()
        return element, self.work(element, *side), time.monotonic() - began

    def _counted(self, element: Any, result: Any, seconds: float) -> Any:
        # Beam's counters belong to the thread that it calls, so not in `work`.
        counts = self.counts(element, result)
        self._metrics.count(milliseconds=round(seconds * 1000), **counts)
        return result


class Shares:
    """Elements dealt out to threads: first a run for each, then what other threads have left.

    Neighbouring blocks are alike, and a tokenizer is fast on text like the text before. So each
    thread works through its run from the front. A thread without elements takes the last element of
    the longest run.
    """

    def __init__(self, elements: Sequence[Any], threads: int) -> None:
        self._lock = threading.Lock()
        ends = [len(elements) * n // threads for n in range(threads + 1)]
        self._runs = [deque(elements[ends[n] : ends[n + 1]]) for n in range(threads)]

    def of(self, number: int) -> Iterator[Any]:
        """Yields the elements for one thread."""
        while True:
            with self._lock:
                longest = max(self._runs, key=len)
                if not longest:
                    return
                own = self._runs[number]
                element = own.popleft() if own else longest.pop()
            yield element

    def drop(self) -> None:
        """Drops all elements that are left."""
        with self._lock:
            for run in self._runs:
                run.clear()
