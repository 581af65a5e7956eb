"""What the loader reads from: sources of samples by number, and streams that draw from several."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Samples = npt.NDArray[np.uint32]


class Source(Protocol):
    """Samples by number; `TokenDataset` is one.

    May also have `gather(numbers) -> uint32, shape (len(numbers), T + 1)`, which is quicker than
    one by one, and `shard_bounds`, without which no windowed shuffle is possible: int64, shape
    (shards + 1,), the number of the first sample of each shard, and of all.
    """

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""

    @property
    def tokens_a_sample(self) -> int:
        """T, the tokens of a sample, the label of the last one apart."""

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, index: int, /) -> Samples:
        """A sample, uint32, shape (T + 1,)."""


@runtime_checkable
class SampleStream(Protocol):
    """An order over several sources; `Mixture` is one.

    length: the number of draws, or None if there is no end.
    """

    names: tuple[str, ...]
    sources: tuple[Source, ...]
    length: int | None
    fingerprint: str

    @property
    def tokens_a_sample(self) -> int:
        """T, of every source."""

    def fingerprint_of(self, draws: int) -> str:
        """Changes when any of the first draws does; the later ones have no part in it."""

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop): numbers in `sources`, and numbers within the source.

        Numbers within a source count on: from its length on, it is being repeated.
        """


def gather(source: Source, numbers: Numbers) -> Samples:
    """Samples of a source by their numbers; uint32, shape (len(numbers), T + 1)."""
    if hasattr(source, "gather"):
        gathered: Samples = source.gather(numbers)
        return gathered
    rows = np.empty((len(numbers), source.tokens_a_sample + 1), np.uint32)
    for row, number in zip(rows, numbers.tolist(), strict=True):
        row[:] = source[number]
    return rows
