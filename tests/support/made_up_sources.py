"""What the tests of mixtures share: made-up sources, and the definition in plain integers."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fineshards.loader.apportionment import Stretch
from fineshards.loader.mixture import Mixture
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


def in_turn(stretch: Stretch) -> Iterator[tuple[int, int]]:
    """The draws of a stretch by its definition: one after the other, in Python's integers."""
    weights, phases = stretch.weights.tolist(), stretch.phases.tolist()

    def due(source: int, given: int) -> int:
        # The first tick with floor((tick * weight + phase) / 2^60) > given.
        return max(0, -(-((given + 1) * 2**60 - phases[source]) // weights[source]))

    waiting = [(due(source, 0), source, 0) for source, weight in enumerate(weights) if weight]
    heapq.heapify(waiting)
    while True:
        _, source, given = waiting[0]
        heapq.heapreplace(waiting, (due(source, given + 1), source, given + 1))
        yield source, int(stretch.counts[source]) + given


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
    """Whether every number of a source comes after all smaller ones, once."""
    seen: Counter[int] = Counter()
    for source, number in draws:
        if number != seen[source]:
            return False
        seen[source] += 1
    return True
