"""The counters that every step reports, for people to watch.

They count attempts, retries included. The dataset's totals come from the records instead.
"""

from apache_beam.metrics import Metrics


class StepMetrics:
    """The metrics of one step, in the namespace `fineshards.<step>`."""

    def __init__(self, step: str) -> None:
        self._namespace = f"fineshards.{step}"

    def count(self, **amounts: int) -> None:
        """Adds to counters, such as `count(blocks_in=1, tokens_out=4711)`."""
        for name, amount in amounts.items():
            Metrics.counter(self._namespace, name).inc(amount)
