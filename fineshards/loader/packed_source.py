"""Reads packed rows: rows of whole documents, from a source that gives consecutive tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.boundaries import whole_documents
from fineshards.loader.joined_datasets import JoinedDatasets
from fineshards.loader.packing import Packing, pack
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.tokens.local_shards import Parts, fill_rows, join

if TYPE_CHECKING:
    from fineshards.loader.sample_documents import SampleDocument

Mask = npt.NDArray[np.bool_]

# Windows kept beyond those whose rows are shuffled together: a batch can reach into the next ones.
_MORE_WINDOWS = 4


@dataclass(slots=True)
class _Window:
    """A packed window.

    rows: the parts of each row, as bytes of int64s of shape (n, 3): where each begins and ends in
    the stream, and the token after it. Bytes, because those of a batch are joined in no time.
    tokens: its tokens; None where they are read from the shards. counted: the loss mask of its
    targets, once asked for.
    """

    rows: list[bytes]
    tokens: npt.NDArray[np.unsignedinteger] | None
    counted: Mask | None = None


class _Rows(NamedTuple):
    """Rows of packed sources: each is filled by its parts, one after the other.

    windows: by source and number. which: the source of each part. begins, sizes: of each, in the
    source's stream. following: the token after each. borders: row r has parts
    `[borders[r], borders[r + 1])`.
    """

    windows: dict[tuple[int, int], _Window]
    which: Numbers
    begins: Numbers
    sizes: Numbers
    following: Numbers
    borders: list[int]


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
        # In the order of packing. Without a lock, which a fork could leave locked: each
        # operation on the dict is atomic, and at worst two threads pack the same window.
        self._windows: dict[int, _Window] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_windows": {}}

    def loss_mask(self, numbers: Numbers) -> Mask:
        """The source's loss mask for the targets of rows: bool, shape (len(numbers), T)."""
        if not hasattr(self._source, "loss_mask"):
            return np.ones((len(numbers), self._length), np.bool_)
        rows = _rows([self], np.zeros_like(numbers), numbers)
        counted = dict[int, Mask]()
        for (_, at), window in rows.windows.items():
            if window.counted is None:
                sample = at * self._packing.rows
                samples = np.arange(sample, sample + len(window.rows))
                window.counted = self._source.loss_mask(samples).reshape(-1)
            counted[at] = window.counted
        found = join(self._in_windows(rows), [counted], {np.dtype(np.bool_)}).view(np.bool_)
        return found.reshape(len(numbers), self._length)

    def work(self, numbers: Numbers, length: int) -> Numbers:
        """The sum of squared document lengths of each row, cut to rows of `length` tokens."""
        found = np.empty_like(numbers)
        windows, rows = np.divmod(numbers, self._packing.rows)
        for number in np.unique(windows).tolist():
            # Rows are full, so each part begins where the one before it ends.
            begins, stops, _ = _parts(self.window(number).rows)
            ends = np.cumsum(stops - begins)
            begins = np.union1d(np.append(0, ends[:-1]), np.arange(0, ends[-1], length))
            if self._packing.max_documents is not None:
                rows_of = begins // length
                nth = np.arange(len(begins)) - np.searchsorted(rows_of, rows_of)
                begins = begins[nth < self._packing.max_documents]
            squares = np.diff(begins, append=ends[-1]) ** 2
            firsts = np.searchsorted(begins, np.arange(0, ends[-1], self._length))
            here = windows == number
            found[here] = np.add.reduceat(squares, firsts)[rows[here]]
        return found

    def refuse_unknown(self, numbers: Numbers) -> None:
        """Raises OutputError if the windows of rows have a token beyond the vocabulary."""
        size, refuse = self._packing.rows, getattr(self._source, "refuse_unknown", None)
        if refuse is not None:
            for window in np.unique(numbers // size).tolist():
                self._windows.pop(window, None)
                refuse(np.arange(window * size, min(window * size + size, len(self))))

    def documents(self, number: int) -> list[SampleDocument]:
        """The documents in a row, in the order of the row; `begin` and `end` are columns."""
        if not hasattr(self._source, "documents_between"):
            raise UsageError("the packed source does not know its documents (documents_between).")
        found, column = [], 0
        window, row = divmod(number, self._packing.rows)
        for begin, end, _ in _parts([self.window(window).rows[row]]).T.tolist():
            for part in self._source.documents_between(begin, end):
                moved = replace(part, begin=part.begin + column, end=part.end + column)
                found.append(moved)
            column += end - begin
        return found

    def rows_of(self, begin: int, end: int) -> list[int]:
        """The rows whose inputs hold any of the source's tokens [begin, end), in their order."""
        size = self._packing.rows
        end = min(end, len(self) * self._length)
        found = []
        for number in range(begin // (size * self._length), -(-end // (size * self._length))):
            for row, parts in enumerate(self.window(number).rows):
                begins, ends, _ = _parts([parts])
                if ((begins < end) & (begin < ends)).any():
                    found.append(number * size + row)
        return found

    def request(self, numbers: Numbers) -> None:
        """Asks the source for the windows that rows are in, without waiting for them."""
        ask, size = getattr(self._source, "request_tokens", None), self._packing.rows
        if ask is not None:
            for window in np.unique(numbers // size).tolist():
                if window not in self._windows:
                    ask(*self._range(window))

    def window(self, number: int) -> _Window:
        """A window, which is packed unless it is kept."""
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = self._pack(number)
            kept = self._packing.shuffle_windows + _MORE_WINDOWS
            for old in list(self._windows)[:-kept]:
                self._windows.pop(old, None)
        return window

    def _range(self, window: int) -> tuple[int, int]:
        """The tokens of a window, and the one after them: [begin, stop) of the stream."""
        begin = window * self._window_tokens
        return begin, min(begin + self._window_tokens, self._tokens) + 1

    def _pack(self, number: int) -> _Window:
        tokens, length = self._source.read_tokens(*self._range(number)), self._length
        zero = number * self._window_tokens
        # With the token after the window, so that a redacted document is known by its length.
        starts = np.flatnonzero(tokens == self._source.eot)
        if hasattr(self._source, "within_redacted"):
            starts = whole_documents(starts, zero, self._source.within_redacted)
        starts = starts[starts < len(tokens) - 1]
        if not len(starts) or starts[0]:
            starts = np.append(0, starts)
        rows, most = (len(tokens) - 1) // length, self._packing.max_documents
        begins, lengths, borders = pack(starts, rows, length, most)
        stops = begins + lengths
        parts = np.empty((len(begins), 3), np.int64)
        parts[:, 0], parts[:, 1], parts[:, 2] = zero + begins, zero + stops, tokens[stops]
        content, places = parts.tobytes(), (parts.strides[0] * borders).tolist()
        if not self._in_place and not tokens.flags.owndata:
            tokens = tokens.copy()  # keeps no mapped file open
        packed = [content[begin:end] for begin, end in pairwise(places)]
        return _Window(packed, None if self._in_place else tokens)

    def _in_windows(self, rows: _Rows) -> Parts:
        """The parts of rows, as ranges in their windows."""
        windows, begins = np.divmod(rows.begins, self._window_tokens)
        lists = rows.which, windows, begins, begins + rows.sizes
        return Parts(*[each.tolist() for each in lists])


def _parts(rows: Sequence[bytes]) -> Numbers:
    """Where the parts of rows begin and end, and the token after each: shape (3, parts)."""
    return np.frombuffer(b"".join(rows), np.int64).reshape(-1, 3).T


def _rows(sources: Sequence[PackedSource], which: Numbers, numbers: Numbers) -> _Rows:
    """Row `numbers[i]` of source `which[i]`, of each i. The sources have one packing."""
    of, nth = np.divmod(numbers, sources[0]._packing.rows)
    keys = list(zip(which.tolist(), of.tolist(), strict=True))
    windows = {key: sources[key[0]].window(key[1]) for key in set(keys)}
    rows = [windows[key].rows[row] for key, row in zip(keys, nth.tolist(), strict=True)]
    begins, stops, following = _parts(rows)
    ends = np.array([0, *map(len, rows)]).cumsum() // following.strides[0]
    of_parts = which.repeat(ends[1:] - ends[:-1])
    return _Rows(windows, of_parts, begins, stops - begins, following, ends.tolist())


def fill_packed(
    sources: Sequence[PackedSource],
    which: Numbers,
    numbers: Numbers,
    inputs: Samples,
    targets: Samples,
    starts: Mask | None,
    joined: JoinedDatasets | None = None,
) -> int:
    """Copies row `numbers[i]` of source `which[i]` to row i of arrays of shape (rows, T).

    targets: of each input, the token after it in its source. starts: True at the start of a row and
    where tokens from another place follow. None if not needed. joined: reads the sources in place.
    Returns the largest token.
    """
    rows = _rows(sources, which, numbers)
    if joined is not None:
        places = joined.places(rows.which, rows.begins)
        largest = joined.fill(inputs, rows.which, places, places[1] + rows.sizes, rows.borders)
    else:
        tokens: list[dict[int, Any]] = [{} for _ in sources]
        for (source, at), window in rows.windows.items():
            tokens[source][at] = window.tokens
        dtypes = {each.dtype for of_source in tokens for each in of_source.values()}
        parts = sources[0]._in_windows(rows)
        largest = fill_rows(inputs, parts, rows.borders, tokens, dtypes)
    # Rows are full, so a part begins where the one before it ends.
    ends = rows.sizes.cumsum()
    targets[:, :-1] = inputs[:, 1:]
    targets[np.divmod(ends - 1, inputs.shape[1])] = rows.following
    if starts is not None:
        starts[...] = False
        starts[np.divmod(ends - rows.sizes, inputs.shape[1])] = True
    return max(largest, int(rows.following.max(initial=0)))
