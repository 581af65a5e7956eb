"""Batches as a function of their place: which samples they hold, for any number of readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fineshards.errors import UsageError
from fineshards.loader.arguments import whole_number
from fineshards.loader.order import EpochOrder
from fineshards.loader.sample_sources import Numbers, Samples, SampleStream, Source, gather

# Positions of the global order that are worked out together: vectorised work wants some thousands.
_SPAN = 1 << 14


@dataclass(frozen=True, slots=True)
class Share:
    """How samples are dealt out: `batch_size` in a global batch, of which a rank has its part."""

    batch_size: int
    rank: int
    world_size: int

    @classmethod
    def checked(cls, batch_size: int, rank: int, world_size: int) -> Share:
        """Raises UsageError for numbers that do not go together."""
        share = cls(
            whole_number("batch_size", batch_size, 1),
            whole_number("rank", rank, 0),
            whole_number("world_size", world_size, 1),
        )
        if share.rank >= share.world_size:
            raise UsageError(
                f"rank {rank} is not one of world_size {world_size}: ranks go from 0 to "
                f"{world_size - 1}."
            )
        if share.batch_size % share.world_size:
            raise UsageError(
                f"a batch of {batch_size} samples cannot be divided by world_size {world_size}; "
                "give a multiple of it."
            )
        return share

    def part(self, samples: int) -> tuple[int, int]:
        """This rank's `[start, stop)` of a batch; all ranks' parts are the batch, in order.

        Parts of a full batch are equal; of a last, partial one they differ by one at most.
        """
        return (
            samples * self.rank // self.world_size,
            samples * (self.rank + 1) // self.world_size,
        )


class Batches:
    """One rank's part of every global batch.

    The global order is that of the stream, or the epochs of a source one after the other; each
    source of a stream has epochs of its own. end: its length, or None if there is no end.
    keep_last: whether a last batch with fewer samples is one too. See BatchLoader for the others.
    """

    def __init__(
        self,
        source: Source | SampleStream,
        share: Share,
        seed: int,
        shuffle: bool,
        window: int | None,
        epochs: int | None,
        keep_last: bool,
    ) -> None:
        self.share = share
        self._keep_last = keep_last
        self._width = source.tokens_a_sample + 1
        self._stream: SampleStream | None = None
        if isinstance(source, SampleStream):
            if epochs is not None:
                raise UsageError(
                    f"epochs={epochs}: a mixture has no epochs; say what is to happen when its "
                    "sources are exhausted instead."
                )
            self._stream = source
            self._sources, names = source.sources, source.names
            self.end = source.length
        else:
            # No source of a mixture has an empty name to be confused with.
            self._sources, names = (source,), ("",)
            self.end = None if epochs is None else epochs * len(source)
        self._orders = [
            EpochOrder(each, seed, name, shuffle, window)
            for each, name in zip(self._sources, names, strict=True)
        ]

    def size(self, consumed: int) -> int:
        """How many samples the global batch has that follows so many; 0 at the end."""
        if self.end is None or consumed + self.share.batch_size <= self.end:
            return self.share.batch_size
        return max(0, self.end - consumed) if self._keep_last else 0

    def after(self, consumed: int, steps: int) -> int:
        """Consumed samples after so many more batches, or as many as there are."""
        later = consumed + steps * self.share.batch_size
        if self.end is None or later <= self.end:
            return later
        whole = max(0, self.end - consumed) // self.share.batch_size
        later = consumed + whole * self.share.batch_size
        return later + self.size(later)

    def follow(self, consumed: int, step: int = 1) -> Iterator[Samples]:
        """The batches after so many consumed samples, or every `step`-th of them.

        uint32, shape (samples of this rank, T + 1).
        """
        many = 1
        while self.size(consumed):
            # The first batches are worked out one by one, since somebody waits for them.
            starts: list[int] = []
            while len(starts) < many and self.size(consumed):
                starts.append(consumed)
                consumed += step * self.share.batch_size
            yield from self._read(starts)
            many = min(2 * many, max(1, _SPAN // (step * self.share.batch_size)))

    def _read(self, starts: list[int]) -> Iterator[Samples]:
        parts = [self.share.part(self.size(start)) for start in starts]
        positions = [
            np.arange(start + first, start + stop)
            for start, (first, stop) in zip(starts, parts, strict=True)
        ]
        which, numbers = self._locate(np.concatenate(positions))
        borders = np.cumsum([len(each) for each in positions])[:-1]
        for sources_here, numbers_here in zip(
            np.split(which, borders), np.split(numbers, borders), strict=True
        ):
            yield self._gather(sources_here, numbers_here)

    def _locate(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """For positions in the global order, increasing: number of the source, and sample of it."""
        if self._stream is None:
            return np.zeros_like(positions), self._orders[0](positions)
        if not len(positions):
            return positions, positions
        first = int(positions[0])
        which, numbers = self._stream.draws(first, int(positions[-1]) + 1)
        which, numbers = which[positions - first], numbers[positions - first]
        found = np.empty_like(numbers)
        for source, here in _groups(which):
            found[here] = self._orders[source](numbers[here])
        return which, found

    def _gather(self, which: Numbers, numbers: Numbers) -> Samples:
        if self._stream is None:
            return gather(self._sources[0], numbers)
        rows = np.empty((len(numbers), self._width), np.uint32)
        for source, here in _groups(which):
            rows[here] = gather(self._sources[source], numbers[here])
        return rows


def _groups(which: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Every value, and the indices that have it."""
    order = np.argsort(which, kind="stable")
    values, firsts = np.unique(which[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, firsts[1:]), strict=False)
