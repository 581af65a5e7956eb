"""Which rows of a global batch each rank takes: consecutive ones, or about the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.steps import Ramp


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of every global batch."""

    rank: int
    world_size: int

    @classmethod
    def checked(cls, rank: int, world_size: int, sizes: Ramp, uneven: bool) -> Share:
        """A share; raises UsageError if a number is out of range or a batch cannot be divided."""
        share = cls(checked_integer("rank", rank, 0), checked_integer("world_size", world_size, 1))
        if share.rank >= share.world_size:
            raise UsageError(
                f"rank is {rank}, but with world_size {world_size} ranks go from 0 to "
                f"{world_size - 1}."
            )
        for size in sizes.values:
            if size % share.world_size and not uneven:
                raise UsageError(
                    f"batch_size {size} cannot be divided by world_size {world_size}; give a "
                    "multiple of it, or uneven=True."
                )
        return share

    def part(self, samples: int) -> tuple[int, int]:
        """This rank's part `[start, stop)` of a batch; ranks take consecutive parts.

        They are equal, or differ by one sample if `world_size` does not divide the batch.
        """
        return (
            samples * self.rank // self.world_size,
            samples * (self.rank + 1) // self.world_size,
        )

    def place(self, sample: int, samples: int) -> tuple[int, int]:
        """The rank that gets a sample of a batch of `samples`, and the row in its part."""
        rank = ((sample + 1) * self.world_size - 1) // samples
        return rank, sample - samples * rank // self.world_size


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
