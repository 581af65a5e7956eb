"""Batches as a function of their position: which samples each holds, for any world size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.boundaries import starts
from fineshards.loader.fields import Batch, Fields, Rows
from fineshards.loader.order import EpochOrder
from fineshards.loader.ramp import Ramp
from fineshards.loader.sample_sources import MixedSource, Numbers, Samples, Source, gather_into
from fineshards.loader.steps import Position, Steps

# Positions of the global order computed together: vectorised code needs thousands to be fast.
_SPAN = 1 << 14


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of every global batch."""

    rank: int
    world_size: int

    @classmethod
    def checked(cls, rank: int, world_size: int, sizes: Ramp) -> Share:
        """A share; raises UsageError if a number is out of range or a batch cannot be divided."""
        share = cls(checked_integer("rank", rank, 0), checked_integer("world_size", world_size, 1))
        if share.rank >= share.world_size:
            raise UsageError(
                f"rank is {rank}, but with world_size {world_size} ranks go from 0 to "
                f"{world_size - 1}."
            )
        for size in sizes.values:
            if size % share.world_size:
                raise UsageError(
                    f"batch_size {size} cannot be divided by world_size {world_size}; give a "
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
        step: The global batch, from 0.
        rank: The rank that gets the sample.
        row: Its row in that rank's batch, before a shorter sequence length cuts it.
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


@dataclass(frozen=True, slots=True, eq=False)
class _Located:
    """One rank's part of a batch, not read yet: source indices and sample numbers of its rows."""

    step: int
    which: Numbers
    numbers: Numbers


class Batches:
    """One rank's part of every global batch.

    The global order is the epochs of a source one after the other, or the draws of a mixture, whose
    sources have an epoch order each. The arguments are those of BatchLoader.
    """

    def __init__(
        self,
        source: Source | MixedSource,
        share: Share,
        sizes: Ramp,
        seed: int,
        shuffle: bool,
        shuffle_shards: int | None,
        epochs: int | None,
        drop_last: bool,
        lengths: Ramp,
        dtype: np.dtype[Any],
        fields: Fields | None,
    ) -> None:
        self.share = share
        self._lengths = lengths
        self._dtype = dtype
        self._fields = fields
        self._width = source.sequence_length + 1
        self._mixture: MixedSource | None = None
        # Of any type, as most of what is asked of a source is optional.
        self.sources: tuple[Any, ...]
        if isinstance(source, MixedSource):
            if epochs is not None:
                raise UsageError(
                    f"epochs is {epochs}, but a mixture has no epochs. Leave epochs out, and use "
                    "the mixture's exhausted argument to end it."
                )
            self._mixture = source
            self.sources, self.names = source.sources, source.names
            end = source.length
        else:
            # The name is part of the key of the order: a single source has the empty one.
            self.sources, self.names = (source,), ("",)
            end = None if epochs is None else epochs * len(source)
        self.steps = Steps(sizes, end, self._mixture is None, drop_last)
        self._orders = [
            EpochOrder(each, seed, name, shuffle, shuffle_shards)
            for each, name in zip(self.sources, self.names, strict=True)
        ]
        for each in self.sources:
            if hasattr(each, "expect"):
                each.expect(shuffle, shuffle_shards)
        self._eots = self._end_tokens()

    def resume_at(self, position: Position) -> None:
        """Counts steps on from a position, which other batch sizes may have led to."""
        counted = replace(self.steps, first=Position())
        # At the end of a pass no batch begins, so compare with where the batch before ended.
        before = counted.at(position.step - 1) if position.step else None
        known = counted.first if before is None else counted.advance(before, 1)
        beginnings = known, counted.next_pass(known)
        self.steps = replace(counted, first=Position() if position in beginnings else position)

    def iterate_from(self, position: Position, step: int = 1, ahead: int = 0) -> Iterator[Batch]:
        """Every `step`-th batch from a position to the end of its pass.

        ahead: how many batches more are requested before one is read.
        """
        waiting: deque[_Located] = deque()
        for located in self._locate_from(position, step):
            self._request(located)
            waiting.append(located)
            if len(waiting) > ahead:
                yield self._read(waiting.popleft())
        while waiting:
            yield self._read(waiting.popleft())

    def drawn(self, step: int) -> list[DrawnSample]:
        """The samples of this rank's part of global batch `step`, in order."""
        position = self.steps.at(step)
        if position is None:
            return []
        first, stop = self.share.part(self.steps.size(position))
        places = np.arange(position.consumed + first, position.consumed + stop)
        which, epochs, numbers = self._locate(places)
        drawn = zip(which.tolist(), epochs.tolist(), numbers.tolist(), strict=True)
        return [
            DrawnSample(step, self.share.rank, row, self.names[source], number, epoch)
            for row, (source, epoch, number) in enumerate(drawn)
        ]

    def draws_of(self, source: int, sample: int, epoch: int) -> DrawnSample | None:
        """Where a sample of a source is drawn in an epoch; None if no batch holds it."""
        (place,) = self._orders[source].positions(np.array([sample]), epoch).tolist()
        in_order = place if self._mixture is None else self._mixture.position(source, place)
        found = None if in_order is None else self.steps.find(in_order)
        if in_order is None or found is None:
            return None
        rank, row = self.share.place(in_order - found.consumed, self.steps.size(found))
        return DrawnSample(found.step, rank, row, self.names[source], sample, epoch)

    def _locate_from(self, position: Position, step: int) -> Iterator[_Located]:
        many = 1
        while self.steps.size(position):
            # Start with one batch at a time, so that the first one is ready soon.
            numbers: list[int] = []
            places: list[Numbers] = []
            while len(numbers) < many and (size := self.steps.size(position)):
                first, stop = self.share.part(size)
                numbers.append(position.step)
                places.append(np.arange(position.consumed + first, position.consumed + stop))
                position = self.steps.advance(position, step)
            which, _, samples = self._locate(np.concatenate(places))
            borders = np.cumsum([len(each) for each in places])[:-1]
            parts = np.split(which, borders), np.split(samples, borders)
            for located in zip(numbers, *parts, strict=True):
                yield _Located(*located)
            many = min(2 * many, max(1, _SPAN // (step * self.steps.sizes(position.step))))

    def _locate(self, places: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The source index, epoch and sample number of places of the order, which must increase."""
        if self._mixture is None:
            epochs = places // len(self.sources[0])
            return np.zeros_like(places), epochs, self._orders[0](places)
        if not len(places):
            return places, places, places
        first = int(places[0])
        which, numbers = self._mixture.draws(first, int(places[-1]) + 1)
        which, numbers = which[places - first], numbers[places - first]
        found, epochs = np.empty_like(numbers), np.empty_like(numbers)
        for source, here in _groups(which):
            found[here] = self._orders[source](numbers[here])
            epochs[here] = numbers[here] // len(self.sources[source])
        return which, epochs, found

    def _request(self, located: _Located) -> None:
        for source, here in self._by_source(located.which):
            each = self.sources[source]
            if hasattr(each, "request"):
                each.request(located.numbers[here])

    def _read(self, located: _Located) -> Batch:
        length = self._lengths(located.step)
        if self._fields is None:
            return _cut(self._tokens(located, self._dtype), length)
        tokens = self._tokens(located, np.dtype(np.uint32))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        begins = counts = None
        if self._fields.need_documents:
            eots = self._eots[located.which][:, np.newaxis]
            begins = starts(inputs, eots)
            counts = targets != eots if self._fields.need_mask else None
        if counts is not None:
            for source, here in self._by_source(located.which):
                if hasattr(self.sources[source], "loss_mask"):
                    counts[here] &= self.sources[source].loss_mask(located.numbers[here])
        which = located.which.astype(np.int32)
        rows = Rows(inputs, targets, begins, counts, which, located.numbers)
        return self._fields.of(rows.cut(length), None)

    def _tokens(self, located: _Located, dtype: np.dtype[Any]) -> Samples:
        """The samples: shape (rows, T + 1)."""
        tokens = np.empty((len(located.numbers), self._width), dtype)
        for source, here in self._by_source(located.which):
            gather_into(self.sources[source], tokens, here, located.numbers[here])
        return tokens

    def _by_source(self, which: Numbers) -> Iterator[tuple[int, Numbers]]:
        return _groups(which) if self._mixture else iter([(0, np.arange(len(which)))])

    def _end_tokens(self) -> Numbers:
        """The EOT of each source, where a field needs it."""
        if self._fields is None or not self._fields.need_documents:
            return np.zeros(len(self.sources), np.int64)
        for source in self.sources:
            if not hasattr(source, "eot"):
                raise UsageError(
                    "a source does not say which token starts its documents (eot), so fields "
                    "that depend on documents cannot be computed. Leave them out."
                )
        return np.array([source.eot for source in self.sources], np.int64)


def _cut(tokens: Samples, length: int) -> Samples:
    """Rows of T + 1 tokens as rows of length + 1; the last token of each begins the next."""
    rows, width = tokens.shape
    times = (width - 1) // length
    if times == 1:
        return tokens
    found = np.empty((rows, times, length + 1), tokens.dtype)
    found[..., :-1] = tokens[:, :-1].reshape(rows, times, length)
    found[..., -1] = tokens[:, length::length]
    return found.reshape(-1, length + 1)


def _groups(which: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Each distinct value with the indices where it occurs."""
    order = np.argsort(which, kind="stable")
    values, firsts = np.unique(which[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, firsts[1:]), strict=False)
