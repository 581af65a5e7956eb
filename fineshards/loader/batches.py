"""Batches as a function of their position: which samples each holds, for any world size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fineshards.errors import UsageError
from fineshards.loader.arguments import checked_integer
from fineshards.loader.boundaries import Bools, starts
from fineshards.loader.fields import Batch, Fields, Rows
from fineshards.loader.memory import Memory
from fineshards.loader.order import EpochOrder
from fineshards.loader.packed_source import PackedSource
from fineshards.loader.packing import Packing
from fineshards.loader.ramp import Ramp
from fineshards.loader.sample_sources import (
    MixedSource,
    Numbers,
    Samples,
    Source,
    gather_into,
    is_mixed,
)
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
    """One rank's part of a batch, not read yet.

    which, numbers: the source index and sample number of each row. by_source: each source with its
    rows and their sample numbers.
    """

    step: int
    which: Numbers
    numbers: Numbers
    by_source: list[tuple[int, Numbers, Numbers]]


@dataclass(frozen=True, slots=True)
class Order:
    """What decides which sample is next. The fields are arguments of BatchLoader."""

    seed: int
    shuffle: bool
    shuffle_shards: int | None
    epochs: int | None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a batch is made of. The fields are arguments of BatchLoader.

    sizes: of global batches, by the step. lengths: of sequences, by the step.
    """

    sizes: Ramp
    drop_last: bool
    lengths: Ramp
    dtype: np.dtype[Any]
    fields: Fields | None


class Batches:
    """One rank's part of every global batch.

    The global order is the epochs of a source one after the other, or the draws of a mixture, whose
    sources have an epoch order each.
    """

    def __init__(
        self,
        source: Source | MixedSource,
        share: Share,
        order: Order,
        shape: Shape,
        packing: Packing | None,
    ) -> None:
        self.share = share
        self._shape = shape
        self._packing = packing
        self._width = source.sequence_length + 1
        self._mixture: MixedSource | None = None
        # Of any type, as most of what is asked of a source is optional.
        self.sources: tuple[Any, ...]
        if is_mixed(source):
            if order.epochs is not None:
                raise UsageError(
                    f"epochs is {order.epochs}, but a mixture has no epochs. Leave epochs out, and "
                    "use the mixture's exhausted argument to end it."
                )
            self._mixture, self.sources, self.names = source, tuple(source.sources), source.names
            end = source.length
        else:
            # The name is part of the key of the order: a single source has the empty one.
            single: tuple[Any, ...] = (source,)
            self.sources, self.names = single, ("",)
            end = None if order.epochs is None else order.epochs * len(single[0])
        self.steps = Steps(shape.sizes, end, self._mixture is None, shape.drop_last)
        windows = (packing.rows, packing.shuffle_windows) if packing else None
        self._orders = [
            EpochOrder(each, order.seed, name, order.shuffle, order.shuffle_shards, windows)
            for each, name in zip(self.sources, self.names, strict=True)
        ]
        # What rows are read from, and what knows their documents.
        sources: tuple[Any, ...] = self.sources
        self.readers = sources
        if packing is not None:
            self.readers = tuple(PackedSource(each, packing) for each in sources)
        for each in self.sources:
            if hasattr(each, "expect"):
                each.expect(order.shuffle, order.shuffle_shards)
        self._eots = self._end_tokens()

    def know_steps_from(self, first: Position) -> None:
        """Earlier steps cannot be asked for: other batch sizes led there."""
        self.steps = replace(self.steps, first=first)

    def iterate_from(self, position: Position, step: int = 1, ahead: int = 0) -> Iterator[Batch]:
        """Every `step`-th batch from a position to the end of its pass.

        ahead: how many batches more are requested before one is read.
        """
        # The batches read ahead, those that the trainer uses, and tokens that become fields.
        memory = Memory(2 * (ahead + 4))
        waiting: deque[_Located] = deque()
        for located in self._locate_from(position, step):
            self._request(located)
            waiting.append(located)
            if len(waiting) > ahead:
                yield self._read(waiting.popleft(), memory)
        while waiting:
            yield self._read(waiting.popleft(), memory)

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

    def tokens_of(self, drawn: DrawnSample) -> Samples:
        """The tokens of a drawn sample: shape (T + 1,), or the T inputs of a packed row."""
        source, one = self.names.index(drawn.source), np.zeros(1, np.int64)
        numbers = np.array([drawn.sample])
        located = _Located(drawn.step, one + source, numbers, [(source, one, numbers)])
        fields = Fields.checked(["inputs"], np.dtype(np.uint32), None)
        if self._packing is None:
            found = self._tokens(located, fields.dtype, Memory(1))
        else:
            found = self._rows(located, fields, Memory(1)).inputs
        first: Samples = found[0]
        return first

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
            sizes = [len(each) for each in places]
            ends = np.cumsum(sizes).tolist()
            groups = _by_source(which, samples, sizes)
            for number, size, end, group in zip(numbers, sizes, ends, groups, strict=True):
                here = slice(end - size, end)
                yield _Located(number, which[here], samples[here], group)
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
        for source, _, numbers in located.by_source:
            if hasattr(self.readers[source], "request"):
                self.readers[source].request(numbers)

    def _read(self, located: _Located, memory: Memory) -> Batch:
        length, fields = self._shape.lengths(located.step), self._shape.fields
        if fields is None:
            return _cut(self._tokens(located, self._shape.dtype, memory), length)
        most = self._packing.max_documents if self._packing else None
        return fields.of(self._rows(located, fields, memory).cut(length), memory, most)

    def _rows(self, located: _Located, fields: Fields, memory: Memory) -> Rows:
        begins: Bools | None = None
        if self._packing is not None:
            shape = len(located.numbers), self._width - 1
            inputs, targets = memory.empty((2, *shape), np.dtype(np.uint32))
            begins = np.empty(shape, np.bool_) if fields.need_documents else None
            for source, rows, numbers in located.by_source:
                self.readers[source].fill(inputs, targets, begins, rows, numbers)
        else:
            tokens = self._tokens(located, np.dtype(np.uint32), memory)
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            if fields.need_documents:
                begins = starts(inputs, self._eots[located.which][:, np.newaxis])
        counts: Bools | None = None
        if fields.need_mask:
            counts = targets != self._eots[located.which][:, np.newaxis]
            for source, rows, numbers in located.by_source:
                if hasattr(self.readers[source], "loss_mask"):
                    counts[rows] &= self.readers[source].loss_mask(numbers)
        which = located.which.astype(np.int32)
        return Rows(inputs, targets, begins, counts, which, located.numbers)

    def _tokens(self, located: _Located, dtype: np.dtype[Any], memory: Memory) -> Samples:
        """The samples: shape (rows, T + 1)."""
        tokens: Samples = memory.empty((len(located.numbers), self._width), dtype)
        for source, rows, numbers in located.by_source:
            gather_into(self.sources[source], tokens, rows, numbers)
        return tokens

    def _end_tokens(self) -> Numbers:
        """The EOT of each source, where a field needs it."""
        if self._shape.fields is None or not self._shape.fields.need_documents:
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


def _by_source(
    which: Numbers, samples: Numbers, sizes: list[int]
) -> list[list[tuple[int, Numbers, Numbers]]]:
    """For each of consecutive batches: its sources, each with its rows and their samples.

    Sorts once for all batches: a sort per batch would cost as much as reading it.
    """
    batch = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((which, batch))
    rows = order - np.repeat(np.cumsum(sizes) - sizes, sizes)
    which, samples = which[order], samples[order]
    changes = np.flatnonzero((np.diff(which) != 0) | (np.diff(batch) != 0)) + 1
    borders = [0, *changes.tolist(), len(order)]
    found: list[list[tuple[int, Numbers, Numbers]]] = [[] for _ in sizes]
    for first, stop in pairwise(borders):
        if first < stop:
            group = int(which[first]), rows[first:stop], samples[first:stop]
            found[batch[first]].append(group)
    return found
