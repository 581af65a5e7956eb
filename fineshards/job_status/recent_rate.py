"""How fast a job is, by when its files were finished."""

from __future__ import annotations

from collections.abc import Iterable

# A rate is that of this many files, or of the last minute if that had more. The mean since the
# first start would be worse: that may have been days and several restarts ago.
FEW = 50
_SECONDS = 60
_LEAST_SECONDS = 0.5
# Seconds without a written file after which a job is probably not running. A block or a shard takes
# seconds, and a local file shows while it is written.
LONG_IDLE = 300


def recent_rate(finished: Iterable[tuple[float, int]], began: float | None) -> float | None:
    """Amount per second over the most recent of (time, amount), in any order; None without one.

    Counts since the last long pause, in which no worker was running. began: when the first one was
    begun, if that is known.

    Example:
        >>> recent_rate([(100.0, 5), (101.0, 6), (103.0, 6)], None)
        4.0
        >>> recent_rate([(100.0, 5), (9000.0, 6), (9003.0, 6)], None)
        2.0
        >>> recent_rate([(103.9, 6), (104.0, 6)], 100.0)
        3.0
    """
    ordered = sorted(finished)
    if began is not None and ordered and began < ordered[0][0]:
        ordered.insert(0, (began, 0))
    start = len(ordered) - 1
    while start > 0:
        before, time = ordered[start - 1][0], ordered[start][0]
        is_old = len(ordered) - start > FEW and ordered[-1][0] - before > _SECONDS
        if is_old or time - before > LONG_IDLE:
            break
        start -= 1
    seconds = ordered[-1][0] - ordered[start][0] if ordered else 0.0
    # Workers that began at once also end almost at once, which says nothing of how long they took.
    if seconds < _LEAST_SECONDS:
        return None
    return sum(amount for _, amount in ordered[start + 1 :]) / seconds
