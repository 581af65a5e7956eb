"""Dealing the rows of a batch to ranks, so that all have about the same work."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush


def deal(works: Sequence[int], ranks: int) -> list[list[int]]:
    """Each rank's rows, ascending. works: of each row, such as its squared document lengths.

    The row with the most work first, among equals the earliest, goes to the rank with the least
    work that has room, among equals the lowest. Ranks have as many rows as consecutive parts have:
    the same number, or one more or less.
    """
    bounds = [len(works) * rank // ranks for rank in range(ranks + 1)]
    found: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks) if bounds[rank + 1] > bounds[rank]]
    for row in sorted(range(len(works)), key=lambda row: -works[row]):
        load, rank = heappop(loads)
        found[rank].append(row)
        if len(found[rank]) < bounds[rank + 1] - bounds[rank]:
            heappush(loads, (load + works[row], rank))
    return [sorted(rows) for rows in found]
