"""Batches as a function of their position: which samples each holds, for any world size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.order import EpochOrder
from fineshards.loader.sample_sources import MixedSource, Numbers, Samples, Source, gather_into

# Positions of the global order computed together: vectorised code needs thousands to be fast.
_SPAN = 1 << 14


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of every global batch of `batch_size` samples."""

    batch_size: int
    rank: int
    world_size: int

    @classmethod
    def checked(cls, batch_size: int, rank: int, world_size: int) -> Share:
        """A share; raises UsageError if a number is out of range or the batch cannot be divided."""
        share = cls(
            checked_integer("batch_size", batch_size, 1),
            checked_integer("rank", rank, 0),
            checked_integer("world_size", world_size, 1),
        )
        if share.rank >= share.world_size:
            raise UsageError(
                f"rank is {rank}, but with world_size {world_size} ranks go from 0 to "
                f"{world_size - 1}."
            )
        if share.batch_size % share.world_size:
            raise UsageError(
                f"batch_size {batch_size} cannot be divided by world_size {world_size}; give a "
                "multiple of it."
            )
        return share

    def part(self, samples: int) -> tuple[int, int]:
        """This rank's part `[start, stop)` of a batch; ranks take consecutive parts.

        Parts of a full batch are equal. Parts of a partial last batch differ by at most one sample.
        """
        return (
            samples * self.rank // self.world_size,
            samples * (self.rank + 1) // self.world_size,
        )

    def place(self, sample: int, samples: int) -> tuple[int, int]:
        """The rank that gets a sample of a batch of `samples`, and the row in its part."""
        rank = ((sample + 1) * self.world_size - 1) // samples
        return rank, sample - samples * rank // self.world_size


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """A sample at a place in the global order.

    Attributes:
        step: The global batch, from 0, at the loader's batch size.
        rank: The rank that gets the sample.
        row: Its row in that rank's batch.
        source: The source's name in a mixture; empty for a single source.
        sample: The sample's number in its source.
        epoch: How often all samples of the source were drawn before.
    """

    step: int
    rank: int
    row: int
    source: str
    sample: int
    epoch: int


class Batches:
    """One rank's part of every global batch.

    The global order is the epochs of a source one after the other, or the draws of a mixture, whose
    sources have an epoch order each. `end` is the length of the global order; None if it is
    endless. The arguments are those of BatchLoader.
    """

    def __init__(
        self,
        source: Source | MixedSource,
        share: Share,
        seed: int,
        shuffle: bool,
        shuffle_shards: int | None,
        epochs: int | None,
        drop_last: bool,
    ) -> None:
        self.share = share
        self._drop_last = drop_last
        self._width = source.sequence_length + 1
        self._mixture: MixedSource | None = None
        if isinstance(source, MixedSource):
            if epochs is not None:
                raise UsageError(
                    f"epochs is {epochs}, but a mixture has no epochs. Leave epochs out, and use "
                    "the mixture's exhausted argument to end it."
                )
            self._mixture = source
            self.sources, self.names = source.sources, source.names
            self.end = source.length
        else:
            # The name is part of the key of the order: a single source has the empty one.
            self.sources, self.names = (source,), ("",)
            self.end = None if epochs is None else epochs * len(source)
        self._orders = [
            EpochOrder(each, seed, name, shuffle, shuffle_shards)
            for each, name in zip(self.sources, self.names, strict=True)
        ]

    def size(self, consumed: int) -> int:
        """Samples in the global batch that follows `consumed` samples; 0 at the end."""
        if self.end is None or consumed + self.share.batch_size <= self.end:
            return self.share.batch_size
        return 0 if self._drop_last else max(0, self.end - consumed)

    def after(self, consumed: int, steps: int) -> int:
        """Consumed samples after `steps` more batches, or after the last one."""
        later = consumed + steps * self.share.batch_size
        if self.end is None or later <= self.end:
            return later
        whole = max(0, self.end - consumed) // self.share.batch_size
        later = consumed + whole * self.share.batch_size
        return later + self.size(later)

    def iterate_from(self, consumed: int, step: int = 1) -> Iterator[Samples]:
        """Every `step`-th batch after `consumed` samples: uint32, shape (rank's part, T + 1)."""
        many = 1
        while self.size(consumed):
            # Start with one batch at a time, so that the first one is ready soon.
            starts: list[int] = []
            while len(starts) < many and self.size(consumed):
                starts.append(consumed)
                consumed += step * self.share.batch_size
            yield from self._read(starts)
            many = min(2 * many, max(1, _SPAN // (step * self.share.batch_size)))

    def drawn(self, step: int) -> list[DrawnSample]:
        """The samples of this rank's part of global batch `step`, in order."""
        begin = step * self.share.batch_size
        first, stop = self.share.part(self.size(begin))
        which, epochs, numbers = self._locate(np.arange(begin + first, begin + stop))
        drawn = zip(which.tolist(), epochs.tolist(), numbers.tolist(), strict=True)
        return [
            DrawnSample(step, self.share.rank, row, self.names[source], number, epoch)
            for row, (source, epoch, number) in enumerate(drawn)
        ]

    def draws_of(self, source: int, sample: int, epoch: int) -> DrawnSample | None:
        """Where a sample of a source is drawn in an epoch; None if the order ends before."""
        (place,) = self._orders[source].positions(np.array([sample]), epoch).tolist()
        position = place if self._mixture is None else self._mixture.position(source, place)
        if position is None or (self.end is not None and position >= self.end):
            return None
        step, at = divmod(position, self.share.batch_size)
        size = self.size(step * self.share.batch_size)
        if at >= size:  # in a last batch that is left out
            return None
        rank, row = self.share.place(at, size)
        return DrawnSample(step, rank, row, self.names[source], sample, epoch)

    def _read(self, starts: list[int]) -> Iterator[Samples]:
        parts = [self.share.part(self.size(start)) for start in starts]
        positions = [
            np.arange(start + first, start + stop)
            for start, (first, stop) in zip(starts, parts, strict=True)
        ]
        which, _, numbers = self._locate(np.concatenate(positions))
        borders = np.cumsum([len(each) for each in positions])[:-1]
        for sources_here, numbers_here in zip(
            np.split(which, borders), np.split(numbers, borders), strict=True
        ):
            yield self._gather(sources_here, numbers_here)

    def _locate(self, positions: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The source index, epoch and sample number of each position, which must increase."""
        if self._mixture is None:
            epochs = positions // len(self.sources[0])
            return np.zeros_like(positions), epochs, self._orders[0](positions)
        if not len(positions):
            return positions, positions, positions
        first = int(positions[0])
        which, numbers = self._mixture.draws(first, int(positions[-1]) + 1)
        which, numbers = which[positions - first], numbers[positions - first]
        found, epochs = np.empty_like(numbers), np.empty_like(numbers)
        for source, here in _groups(which):
            found[here] = self._orders[source](numbers[here])
            epochs[here] = numbers[here] // len(self.sources[source])
        return which, epochs, found

    def _gather(self, which: Numbers, numbers: Numbers) -> Samples:
        rows = np.empty((len(numbers), self._width), np.uint32)
        if self._mixture is None:
            gather_into(self.sources[0], rows, np.arange(len(numbers)), numbers)
            return rows
        for source, here in _groups(which):
            gather_into(self.sources[source], rows, here, numbers[here])
        return rows


def _groups(which: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Each distinct value with the indices where it occurs."""
    order = np.argsort(which, kind="stable")
    values, firsts = np.unique(which[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, firsts[1:]), strict=False)
