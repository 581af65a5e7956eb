"""Batches as a function of their position: which samples each holds, for any world size."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fineshards.errors import FineshardsError, OutputError, UsageError
from fineshards.loader.boundaries import Bools, starts
from fineshards.loader.fields import Batch, BatchRows, Fields
from fineshards.loader.joined_datasets import JoinedDatasets, Places
from fineshards.loader.memory import Memory
from fineshards.loader.mixing.mixture import Mixture
from fineshards.loader.order import EpochOrder, locate
from fineshards.loader.packed_source import PackedRows, PackedSource, fill_packed, packed_rows
from fineshards.loader.packing import Packing
from fineshards.loader.sample_sources import Numbers, Samples, Source
from fineshards.loader.steps import Position, Ramp, Share, Steps

# Positions of the global order computed together: vectorised code needs thousands to be fast.
_SPAN = 1 << 14
# Packed rows whose parts are found together. More would need more windows at a time.
_PACKED_ROWS = 1 << 10


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

    which, numbers: the source index and sample number of each row. places, rows: where each sample
    begins, or the parts of packed rows, if that was computed.
    """

    step: int
    which: Numbers
    numbers: Numbers
    places: Places | None = None
    rows: PackedRows | None = None

    def by_source(self) -> list[tuple[int, Numbers, Numbers]]:
        """Each source with its rows and their sample numbers."""
        order = np.argsort(self.which, kind="stable")
        which, numbers = self.which[order], self.numbers[order]
        borders = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(order)]
        return [
            (int(which[first]), order[first:stop], numbers[first:stop])
            for first, stop in pairwise(borders)
            if first < stop
        ]


class Batches:
    """One rank's part of every global batch.

    The global order is the epochs of a source one after the other, or the draws of a mixture, whose
    sources have an epoch order each.

    sizes: of global batches, by the step. lengths: of sequences, by the step. The others are
    arguments of BatchLoader.
    """

    def __init__(
        self,
        source: Source | Mixture,
        share: Share,
        sizes: Ramp,
        lengths: Ramp,
        *,
        seed: int,
        shuffle: bool,
        shuffle_shards: int | None,
        epochs: int | None,
        drop_last: bool,
        packing: Packing | None,
        dtype: np.dtype[Any],
        fields: Fields | None,
    ) -> None:
        self.share = share
        self._lengths, self._dtype, self._fields = lengths, dtype, fields
        self._packing = packing
        self._width = source.sequence_length + 1
        self._mixture: Mixture | None = None
        # Of any type, as most of what is asked of a source is optional.
        self.sources: tuple[Any, ...]
        if isinstance(source, Mixture):
            if epochs is not None:
                raise UsageError(
                    f"epochs is {epochs}, but a mixture has no epochs. Leave epochs out, and "
                    "use the mixture's exhausted argument to end it."
                )
            self._mixture, self.sources, self.names = source, source.sources, source.names
            end = source.length
        else:
            # The name is part of the key of the order: a single source has the empty one.
            self.sources, self.names = (source,), ("",)
            end = None if epochs is None else epochs * len(source)
        self.steps = Steps(sizes, end, self._mixture is None, drop_last)
        windows = (packing.rows, packing.shuffle_windows) if packing else None
        self._orders = [
            EpochOrder(one, seed, name, shuffle, shuffle_shards, windows)
            for one, name in zip(self.sources, self.names, strict=True)
        ]
        # What rows are read from, and what knows their documents.
        sources: tuple[Any, ...] = self.sources
        self.readers = sources
        # None if rows are read, or requested, from one source after the other.
        self._joined = JoinedDatasets.of(sources)
        if packing is not None:
            in_place = self._joined is not None
            self.readers = tuple(PackedSource(one, packing, in_place) for one in sources)
        for one in self.sources:
            if hasattr(one, "expect"):
                one.expect(shuffle, shuffle_shards)
        self.eots = self._end_tokens()
        # Tokens that all sources have.
        limits = [one.vocabulary_size for one in sources if hasattr(one, "vocabulary_size")]
        self._vocabulary = min(limits) if len(limits) == len(sources) else None

    def know_steps_from(self, first: Position) -> None:
        """Earlier steps cannot be asked for: other batch sizes led there."""
        self.steps = replace(self.steps, first=first)

    def iterate_from(self, position: Position, step: int = 1, ahead: int = 0) -> Iterator[Batch]:
        """Every `step`-th batch from a position to the end of its pass.

        ahead: how many batches more are requested before one is read.
        """
        self.steps.refuse_empty(position)
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
        which, positions = self._draw(places)
        numbers = locate(self._orders, which, positions)
        epochs = positions // np.array(list(map(len, self.sources)))[which]
        drawn = zip(which.tolist(), epochs.tolist(), numbers.tolist(), strict=True)
        return [
            DrawnSample(step, self.share.rank, row, self.names[source], number, epoch)
            for row, (source, epoch, number) in enumerate(drawn)
        ]

    def draws_of(self, source: int, sample: int, epoch: int) -> DrawnSample | None:
        """Where a sample of a source is drawn in an epoch; None if no batch holds it."""
        (place,) = self._orders[source].positions(np.array([sample]), epoch).tolist()
        in_order = place if self._mixture is None else self._mixture.position(source, place)
        batch = None if in_order is None else self.steps.find(in_order)
        if in_order is None or batch is None:
            return None
        rank, row = self.share.place(in_order - batch.consumed, self.steps.size(batch))
        return DrawnSample(batch.step, rank, row, self.names[source], sample, epoch)

    def tokens_of(self, drawn: DrawnSample) -> Samples:
        """The tokens of a drawn sample: shape (T + 1,), or the T inputs of a packed row."""
        source = np.array([self.names.index(drawn.source)])
        located = _Located(drawn.step, source, np.array([drawn.sample]))
        fields = Fields.checked(["inputs"], np.dtype(np.uint32), None)
        if self._packing is None:
            rows = self._tokens(located, fields.dtype, Memory(1))
        else:
            rows = self._rows(located, fields, Memory(1)).inputs
        tokens: Samples = rows[0]
        return tokens

    def _locate_from(self, position: Position, step: int) -> Iterator[_Located]:
        many = 1  # at first, so that the first batch is ready soon
        while True:
            positions: list[Position] = []
            while len(positions) < many and self.steps.size(position):
                positions.append(position)
                position = self.steps.advance(position, step)
            if not positions:
                return
            yield from self._with_parts(self._locate(positions))
            many = min(2 * many, max(1, _SPAN // (step * self.steps.sizes(position.step))))

    def _with_parts(self, chunk: list[_Located]) -> Iterator[_Located]:
        """The batches; the parts of packed rows are found for many rows together."""
        if self._packing is None or self._joined is None:
            yield from chunk
            return
        count = sum(len(batch.which) for batch in chunk)
        together = max(1, _PACKED_ROWS * len(chunk) // max(1, count))
        for at in range(0, len(chunk), together):
            some = chunk[at : at + together]
            which = np.concatenate([batch.which for batch in some])
            numbers = np.concatenate([batch.numbers for batch in some])
            try:
                packed = packed_rows(self.readers, which, numbers, self._joined)
            except FineshardsError:
                yield from some  # a batch reads its own, so that the error comes with its batch
                continue
            end = 0
            for batch in some:
                begin, end = end, end + len(batch.which)
                rows = packed.some(begin, end, self._width - 1)
                yield replace(batch, rows=rows)

    def _locate(self, positions: list[Position]) -> list[_Located]:
        """This rank's parts of batches."""
        places: list[Numbers] = []
        for position in positions:
            first, stop = self.share.part(self.steps.size(position))
            places.append(np.arange(position.consumed + first, position.consumed + stop))
        which, numbers = self._draw(np.concatenate(places))
        samples = locate(self._orders, which, numbers)
        begun: Places | None = None
        if self._joined is not None and self._packing is None:
            begun = self._joined.places(which, samples * (self._width - 1))
        batches, end = list[_Located](), 0
        for position, part in zip(positions, places, strict=True):
            here = slice(end, end := end + len(part))
            shards = None if begun is None else (begun[0][here], begun[1][here])
            batches.append(_Located(position.step, which[here], samples[here], shards))
        return batches

    def _draw(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """The source index, and the position in its order, of increasing places of the order."""
        if self._mixture is None or not len(places):
            return np.zeros_like(places), places
        first = int(places[0])
        which, numbers = self._mixture.draws(first, int(places[-1]) + 1)
        return which[places - first], numbers[places - first]

    def _request(self, located: _Located) -> None:
        if self._joined is not None:
            return
        for source, _, numbers in located.by_source():
            if hasattr(self.readers[source], "request"):
                self.readers[source].request(numbers)

    def _read(self, located: _Located, memory: Memory) -> Batch:
        length, fields = self._lengths(located.step), self._fields
        if fields is None:
            return _cut(self._tokens(located, self._dtype, memory), length)
        most = self._packing.max_documents if self._packing else None
        return fields.of(self._rows(located, fields, memory).cut(length, most), memory, most)

    def _rows(self, located: _Located, fields: Fields, memory: Memory) -> BatchRows:
        begins: Bools | None = None
        if self._packing is not None:
            length, parts = self._width - 1, located.rows
            if parts is None:
                parts = packed_rows(self.readers, located.which, located.numbers, self._joined)
            if fields.need_documents:
                begins = parts.starts(length)
            both, largest = fill_packed(parts, length, memory, fields.dtype, self._joined)
            self._check_vocabulary(both, located, largest)
            inputs, targets = both
        else:
            tokens = self._tokens(located, np.dtype(np.uint32), memory)
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            if fields.need_documents:
                begins = starts(inputs, self.eots[located.which][:, np.newaxis])
                self._join_redacted(begins, located)
        counts: Bools | None = None
        if fields.need_mask:
            counts = targets != self.eots[located.which][:, np.newaxis]
            for source, rows, numbers in located.by_source():
                if hasattr(self.readers[source], "loss_mask"):
                    counts[rows] &= self.readers[source].loss_mask(numbers)
        which = located.which.astype(np.int32)
        separate = self._packing is not None
        return BatchRows(inputs, targets, begins, counts, which, located.numbers, separate)

    def _join_redacted(self, begins: Bools, located: _Located) -> None:
        """Lets no document begin within a redacted one, whose tokens are all EOT."""
        begun = np.flatnonzero(begins)
        rows, columns = np.divmod(begun[1:][np.diff(begun) == 1], begins.shape[1])
        rows, columns = rows[columns > 0], columns[columns > 0]
        for source in np.unique(located.which[rows]).tolist():
            if hasattr(self.sources[source], "within_redacted"):
                here = located.which[rows] == source
                places = located.numbers[rows[here]] * (self._width - 1) + columns[here]
                inside = self.sources[source].within_redacted(places)
                begins[rows[here][inside], columns[here][inside]] = False

    def _tokens(self, located: _Located, dtype: np.dtype[Any], memory: Memory) -> Samples:
        """The samples: shape (rows, T + 1)."""
        largest = None
        if self._joined is not None:
            where = located.which, located.numbers, located.places
            tokens, largest = self._joined.gather(memory, dtype, *where)
        else:
            tokens = memory.empty((len(located.numbers), self._width), dtype)
            for which, rows, numbers in located.by_source():
                source = self.sources[which]
                if hasattr(source, "gather_into"):
                    source.gather_into(tokens, rows, numbers)
                else:
                    tokens[rows] = [source[number] for number in numbers.tolist()]
        self._check_vocabulary(tokens, located, largest)
        return tokens

    def _check_vocabulary(self, tokens: Samples, located: _Located, largest: int | None) -> None:
        """Raises OutputError if there is a token that no vocabulary has.

        largest: of the tokens, if known.
        """
        if self._vocabulary is None:
            return
        # A damaged token may be negative in the dtype of the batch.
        unsigned = tokens.view(f"u{tokens.itemsize}")
        if (unsigned.max(initial=0) if largest is None else largest) < self._vocabulary:
            return
        for source, rows, numbers in located.by_source():
            token = unsigned[..., rows, :].max(initial=0)
            if token >= self.sources[source].vocabulary_size:
                if hasattr(self.readers[source], "refuse_unknown"):
                    self.readers[source].refuse_unknown(numbers)
                raise OutputError(
                    f"the source {self.names[source]!r} gave the token {token}, but its vocabulary "
                    f"has {self.sources[source].vocabulary_size:,}. Read the batch again, or check "
                    "the source."
                )

    def _end_tokens(self) -> Numbers:
        """The EOT of each source, where a field needs it."""
        fields = self._fields
        if fields is None or not (fields.need_documents or fields.need_mask):
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
    cut = np.empty((rows, times, length + 1), tokens.dtype)
    cut[..., :-1] = tokens[:, :-1].reshape(rows, times, length)
    cut[..., -1] = tokens[:, length::length]
    return cut.reshape(-1, length + 1)
