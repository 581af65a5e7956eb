"""What a BatchLoader reads from: a source of numbered samples, or a mixture of such sources."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Samples = npt.NDArray[np.uint32]


class Source(Protocol):
    """Samples by number; `TokenDataset` is one.

    Two members are optional. `gather(numbers) -> uint32, shape (len(numbers), T + 1)` reads many
    samples at once, which is faster. `shard_bounds` makes `shuffle_shards` possible: int64, shape
    (shards + 1,), the number of each shard's first sample, then the number of samples.
    """

    @property
    def fingerprint(self) -> str:
        """Changes when any sample changes."""

    @property
    def sequence_length(self) -> int:
        """T: tokens per sample, without the label of the last one."""

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, index: int, /) -> Samples:
        """One sample: uint32, shape (T + 1,)."""


@runtime_checkable
class MixedSource(Protocol):
    """A sequence of draws from several sources; `Mixture` is one.

    length: the number of draws; None for an endless sequence.
    """

    names: tuple[str, ...]
    sources: tuple[Source, ...]
    length: int | None
    fingerprint: str

    @property
    def sequence_length(self) -> int:
        """T, the same for every source."""

    def fingerprint_of(self, draws: int) -> str:
        """Changes when any of the first `draws` draws changes; later draws do not matter."""

    def draws(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The draws [start, stop): indices into `sources`, and sample numbers within each source.

        Sample numbers keep counting: numbers from the source's length on repeat its samples.
        """

    def position(self, source: int, number: int) -> int | None:
        """The draw that takes number `number` of a source; None if there is none."""


def gather(source: Source, numbers: Numbers) -> Samples:
    """Samples of a source by number: uint32, shape (len(numbers), T + 1)."""
    if hasattr(source, "gather"):
        gathered: Samples = source.gather(numbers)
        return gathered
    rows = np.empty((len(numbers), source.sequence_length + 1), np.uint32)
    for row, number in zip(rows, numbers.tolist(), strict=True):
        row[:] = source[number]
    return rows
