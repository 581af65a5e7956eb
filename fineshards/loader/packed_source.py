"""Reads packed rows: rows of whole documents, from a source that gives consecutive tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.boundaries import joined_ranges, whole_documents
from fineshards.loader.joined_datasets import JoinedDatasets
from fineshards.loader.memory import Memory
from fineshards.loader.packing import Packing, pack
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.tokens.local_shards import Parts, join, read_rows

if TYPE_CHECKING:
    from fineshards.loader.tokens.split_documents import SampleDocument

Mask = npt.NDArray[np.bool_]

# Windows kept beyond those whose rows are shuffled together: a batch can reach into the next ones.
_MORE_WINDOWS = 4
# Tokens of windows that are read, to be packed together.
_READ = 1 << 23


@dataclass(slots=True, eq=False)
class _Window:
    """A packed window.

    parts: where each part begins and ends in the stream, and the token after it: int64, shape
    (3, parts), row by row. counts: how many parts each row has. tokens: of the window; None where
    they are read from the shards. counted: the loss mask of its targets, once asked for.
    """

    parts: Numbers
    counts: Numbers
    tokens: npt.NDArray[np.unsignedinteger] | None
    counted: Mask | None = None


class PackedRows(NamedTuple):
    """Rows of packed sources: each is filled by its parts, one after the other.

    parts: where the tokens are, in shards or in windows: `Parts` as an array. windows: of each
    source, by number; kept only if the parts are in them. ends: where each part ends in the rows,
    laid one after the other. following: the token after each part. borders: row r has parts
    `[borders[r], borders[r + 1])`.
    """

    parts: Numbers
    windows: Sequence[Mapping[int, _Window]]
    ends: Numbers
    following: Numbers
    borders: Numbers

    def some(self, first: int, stop: int, length: int) -> PackedRows:
        """Rows [first, stop), of `length` tokens each."""
        borders = self.borders[first : stop + 1]
        begin, end = borders[0], borders[-1]
        return PackedRows(
            self.parts[:, begin:end],
            self.windows,
            self.ends[begin:end] - first * length,
            self.following[begin:end],
            borders - begin,
        )

    def starts(self, length: int) -> Mask:
        """Where rows of `length` tokens begin, or tokens from another place: shape (rows, T)."""
        starts = np.zeros((len(self.borders) - 1) * length, np.bool_)
        # Rows are full, so a part begins where the one before it ends.
        starts[:1] = True
        starts[self.ends[:-1]] = True
        return starts.reshape(-1, length)


class PackedSource:
    """The rows of a source's windows: as many rows of T tokens as the source has samples.

    Row i is in window `i // rows`, which has the tokens of samples `[w*rows, w*rows + rows)`. The
    last windows that were packed are kept: some kilobytes each, and their tokens, unless `in_place`
    says that these are read from shards on a disk. Threads can share it. Raises UsageError if the
    source has no `read_tokens` or `eot`; what else it may have is with `Source`.
    """

    def __init__(self, source: Any, packing: Packing, in_place: bool = False) -> None:
        for member in ("read_tokens", "eot"):
            if not hasattr(source, member):
                raise UsageError(
                    f"packing needs a source with {member}, such as a TokenDataset, but "
                    f"{type(source).__name__} has none. Leave packing out."
                )
        self._source = source
        self._packing, self._in_place = packing, in_place
        self._length = source.sequence_length
        self._tokens = len(source) * self._length
        # Inputs of a window; the last one may have fewer.
        self._window_tokens = packing.rows * self._length
        # The last used ones come last. Without a lock, which a fork could leave locked: the dict
        # is replaced, never changed, and at worst two threads pack the same window.
        self._windows: dict[int, _Window] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_windows": {}}

    def loss_mask(self, numbers: Numbers) -> Mask:
        """The source's loss mask for the targets of rows: bool, shape (len(numbers), T)."""
        if not hasattr(self._source, "loss_mask"):
            return np.ones((len(numbers), self._length), np.bool_)
        rows = packed_rows([self], np.zeros_like(numbers), numbers)
        counted = dict[int, Mask]()
        for at, window in rows.windows[0].items():
            if window.counted is None:
                sample = at * self._packing.rows
                samples = np.arange(sample, sample + len(window.counts))
                window.counted = self._source.loss_mask(samples).reshape(-1)
            counted[at] = window.counted
        parts = Parts(*rows.parts.tolist())
        mask = join(parts, [counted], {np.dtype(np.bool_)}).view(np.bool_)
        return mask.reshape(len(numbers), self._length)

    def refuse_unknown(self, numbers: Numbers) -> None:
        """Raises OutputError if the windows of rows have a token beyond the vocabulary."""
        size, refuse = self._packing.rows, getattr(self._source, "refuse_unknown", None)
        if refuse is not None:
            self._windows = {}
            for window in np.unique(numbers // size).tolist():
                refuse(np.arange(window * size, min(window * size + size, len(self))))

    def documents(self, number: int) -> list[SampleDocument]:
        """The documents in a row, in the order of the row; `begin` and `end` are columns."""
        if not hasattr(self._source, "documents_between"):
            raise UsageError("the packed source does not know its documents (documents_between).")
        documents, column, zeros = [], 0, np.zeros(1, np.int64)
        for _, window, *place in packed_rows([self], zeros, zeros + number).parts.T.tolist():
            begin, end = (window * self._window_tokens + edge for edge in place)
            for part in self._source.documents_between(begin, end):
                documents.append(replace(part, begin=part.begin + column, end=part.end + column))
            column += end - begin
        return documents

    def rows_of(self, begin: int, end: int) -> list[int]:
        """The rows whose inputs hold any of the source's tokens [begin, end), in their order."""
        size, rows_there = self._window_tokens, list[int]()
        numbers = range(begin // size, -(-min(end, self._tokens) // size))
        for number, window in self.windows(numbers).items():
            begins, ends, _ = window.parts
            rows = np.repeat(np.arange(len(window.counts)), window.counts)
            here = (begins < end) & (begin < ends)
            rows_there += (number * self._packing.rows + np.unique(rows[here])).tolist()
        return rows_there

    def request(self, numbers: Numbers) -> None:
        """Asks the source for the windows that rows are in, without waiting for them."""
        ask, size = getattr(self._source, "request_tokens", None), self._packing.rows
        if ask is not None:
            for window in np.unique(numbers // size).tolist():
                if window not in self._windows:
                    ask(*self._range(window))

    def windows(self, numbers: Sequence[int]) -> dict[int, _Window]:
        """Windows by number; those that are not cached are packed together."""
        cached, packed = self._windows, dict[int, _Window]()
        missing = [number for number in numbers if number not in cached]
        # The last window may have fewer rows than the others.
        last, many = (len(self) - 1) // self._packing.rows, max(1, _READ // self._window_tokens)
        while missing:
            together = missing[:many] if last not in missing[:many] else missing[-1:]
            packed |= self._pack(together)
            missing = [number for number in missing if number not in together]
        windows = {at: packed[at] if at in packed else cached[at] for at in numbers}
        many = max(self._packing.shuffle_windows + _MORE_WINDOWS, len(windows))
        older = [item for item in cached.items() if item[0] not in windows]
        self._windows = dict([*older, *windows.items()][-many:])
        return windows

    def _range(self, window: int) -> tuple[int, int]:
        """The tokens of a window, and the one after them: [begin, stop) of the stream."""
        begin = window * self._window_tokens
        return begin, min(begin + self._window_tokens, self._tokens) + 1

    def _pack(self, numbers: list[int]) -> dict[int, _Window]:
        """Windows of one size."""
        length, tokens, starts = self._length, list[Any](), list[Numbers]()
        for number in numbers:
            read = self._source.read_tokens(*self._range(number))
            # With the token after the window, so that a redacted document is known by its length.
            begun = np.flatnonzero(read == self._source.eot)
            if hasattr(self._source, "within_redacted"):
                zero = number * self._window_tokens
                begun = whole_documents(begun, zero, self._source.within_redacted)
            begun = begun[begun < len(read) - 1]
            if not len(begun) or begun[0]:
                begun = np.append(0, begun)
            starts.append(begun + len(tokens) * (len(read) - 1))
            tokens.append(read)
        size, most = len(tokens[0]) - 1, self._packing.max_documents
        rows = size // length
        begins, lengths, borders = pack(np.concatenate(starts), rows, length, most, len(tokens))
        counts, packed = np.diff(borders), dict[int, _Window]()
        for at, (number, read) in enumerate(zip(numbers, tokens, strict=True)):
            here = slice(borders[at * rows], borders[at * rows + rows])
            first = begins[here] - at * size
            stops = first + lengths[here]
            zero = number * self._window_tokens
            parts = np.stack((zero + first, zero + stops, read[stops]), dtype=np.int64)
            if self._in_place:
                read = None
            elif not read.flags.owndata:
                read = read.copy()  # keeps no mapped file open
            packed[number] = _Window(parts, counts[at * rows : at * rows + rows], read)
        return packed


def packed_rows(
    sources: Sequence[PackedSource],
    which: Numbers,
    numbers: Numbers,
    joined: JoinedDatasets | None = None,
) -> PackedRows:
    """Row `numbers[i]` of source `which[i]` as row i. The sources have one packing.

    joined: what reads them in place.
    """
    of, nth = np.divmod(numbers, sources[0]._packing.rows)
    windows = [
        source.windows(sorted({*of[which == at].tolist()})) for at, source in enumerate(sources)
    ]
    span = int(of.max(initial=0)) + 1
    keys = [at * span + number for at, of_source in enumerate(windows) for number in of_source]
    every = [window for of_source in windows for window in of_source.values()]
    firsts = np.cumsum([0, *(len(window.counts) for window in every)])
    rows = firsts[np.searchsorted(keys, which * span + of)] + nth
    none = np.empty((3, 0), np.int64)
    counts = np.concatenate([none[0], *(window.counts for window in every)])
    ends, counts = np.cumsum(counts)[rows], counts[rows]
    every_part = np.concatenate([none, *(window.parts for window in every)], axis=1)
    begins, stops, following = every_part[:, joined_ranges(ends - counts, ends)]
    of_parts, sizes = which.repeat(counts), stops - begins
    borders = np.append(0, np.cumsum(counts))
    if joined is not None:
        parts, windows = joined.parts(of_parts, begins, stops), []
    else:
        at, places = np.divmod(begins, sources[0]._window_tokens)
        parts = np.stack((of_parts, at, places, places + sizes))
    return PackedRows(parts, windows, sizes.cumsum(), following.astype(np.uint32), borders)


def fill_packed(
    rows: PackedRows,
    length: int,
    memory: Memory,
    dtype: np.dtype[Any],
    joined: JoinedDatasets | None,
) -> tuple[Samples, int]:
    """The inputs and targets of rows: shape (2, rows, T). Also returns the largest token.

    A target is the token after its input in its source.
    """
    shape = 2 * (len(rows.borders) - 1), length
    parts, borders = Parts(*rows.parts.tolist()), rows.borders.tolist()
    if joined is not None:
        both, largest = joined.read(memory, shape, dtype, parts, borders)
    else:
        shelves: list[dict[int, Any]]
        shelves = [{at: one.tokens for at, one in windows.items()} for windows in rows.windows]
        dtypes = {tokens.dtype for shelf in shelves for tokens in shelf.values()}
        both, largest = read_rows(memory, shape, dtype, parts, borders, shelves, dtypes)
    inputs, targets = both = both.reshape(2, -1)
    targets[:-1] = inputs[1:]
    targets[rows.ends - 1] = rows.following
    return both.reshape(2, -1, length), max(largest, int(rows.following.max(initial=0)))
