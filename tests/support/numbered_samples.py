"""Sources of samples that hold their own numbers, and the order they must come in."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from fineshards.loader.batch_loader import BatchLoader
from fineshards.loader.mixing.mixture import Mixture
from support.scalar_permutation import ScalarPermutation, scalar_key


class Numbers:
    """Samples of three values: the source, and the low and high half of the sample's number."""

    def __init__(self, samples: int, name: int = 0, fingerprint: str = "numbers") -> None:
        self.fingerprint = fingerprint
        self.sequence_length = 2
        self._samples = samples
        self._name = name

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> np.ndarray:
        assert 0 <= index < self._samples
        return np.array([self._name, index % 2**32, index >> 32], np.uint32)


def numbers(loader: Iterator[np.ndarray], batches: int | None = None) -> list[int]:
    """The sample numbers of the next batches, in one list."""
    return [int(row[1]) for batch in islice(loader, batches) for row in batch]


def scalar_order(samples: int, seed: int, epochs: int) -> list[int]:
    """The order of a single source by its definition."""
    order = []
    for epoch in range(epochs):
        shuffled = ScalarPermutation(samples, scalar_key(seed, "epoch", "", epoch))
        order += [shuffled.forward(place) for place in range(samples)]
    return order


def saved(loader: BatchLoader) -> dict[str, Any]:
    """A state as it comes back from a checkpoint."""
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def mixture(**options: Any) -> Mixture:
    """Three sources of 50, 7 and 400 samples."""
    sources = {"a": (Numbers(50, 1), 5), "b": (Numbers(7, 2), 3), "c": (Numbers(400, 3), 2.0)}
    return Mixture(sources, **options)


def pairs(loader: Iterator[np.ndarray], batches: int | None = None) -> list[tuple[int, int]]:
    """The (source, sample) numbers of the next batches, in one list."""
    return [(int(row[0]), int(row[1])) for batch in islice(loader, batches) for row in batch]
