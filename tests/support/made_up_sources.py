"""Shared by the tests of mixtures: made-up sources, and the definition of draws."""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fineshards.loader.mixing.apportionment import Stretch
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.sample_sources import Samples


@dataclass(frozen=True)
class MadeUp:
    """A source of `samples` samples; sample i is [mark, i, 0, …]."""

    samples: int
    mark: int = 0
    sequence_length: int = 4

    @property
    def fingerprint(self) -> str:
        return f"{self.mark}-{self.samples}"

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int, /) -> Samples:
        if not 0 <= index < self.samples:
            raise IndexError(index)
        sample = np.zeros(self.sequence_length + 1, np.uint32)
        sample[:2] = self.mark, index
        return sample


def one_by_one(stretch: Stretch) -> Iterator[tuple[int, int]]:
    """The draws of a stretch by the definition: one by one, in Python integers."""
    weights, phases = stretch.weights.tolist(), stretch.phases.tolist()

    def due(source: int, drawn: int) -> int:
        # The first tick with floor((tick * weight + phase) / 2^60) > drawn.
        return max(0, -(-((drawn + 1) * 2**60 - phases[source]) // weights[source]))

    waiting = [(due(source, 0), source, 0) for source, weight in enumerate(weights) if weight]
    heapq.heapify(waiting)
    while True:
        _, source, drawn = waiting[0]
        heapq.heapreplace(waiting, (due(source, drawn + 1), source, drawn + 1))
        yield source, int(stretch.counts[source]) + drawn


def pairs(
    draws: tuple[Sequence[int], Sequence[int]] | tuple[np.ndarray, np.ndarray],
) -> list[tuple[int, int]]:
    """Draws as (source, number) pairs."""
    sources, numbers = draws
    return list(zip(map(int, sources), map(int, numbers), strict=True))


def mixture(weights: list[Any], lengths: list[int] | int = 10**6, **options: Any) -> Mixture:
    """Sources named a, b, … with these weights and lengths."""
    if isinstance(lengths, int):
        lengths = [lengths] * len(weights)
    names = [chr(ord("a") + at) if len(weights) < 27 else str(at) for at in range(len(weights))]
    return Mixture(
        {
            name: (MadeUp(length, mark), weight)
            for mark, (name, weight, length) in enumerate(zip(names, weights, lengths, strict=True))
        },
        **options,
    )


def is_a_prefix_of_each(draws: list[tuple[int, int]]) -> bool:
    """Whether the numbers of each source are 0, 1, 2, … in this order."""
    seen: Counter[int] = Counter()
    for source, number in draws:
        if number != seen[source]:
            return False
        seen[source] += 1
    return True
