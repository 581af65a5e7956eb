"""Reads packed rows: rows of whole documents, from a source that gives consecutive tokens."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.boundaries import whole_documents
from fineshards.loader.packing import Packing, pack
from fineshards.loader.sample_sources import Numbers, Samples, Source
from fineshards.loader.tokens.local_shards import join

if TYPE_CHECKING:
    from fineshards.loader.sample_documents import SampleDocument

Mask = npt.NDArray[np.bool_]

# Windows kept beyond those whose rows are shuffled together: a batch can reach into the next ones.
_MORE_WINDOWS = 4
# Rows copied together, so that they stay in the processor's cache.
_ROWS = 32


class TokenSource(Source, Protocol):
    """A source that also gives tokens wherever samples begin; `TokenDataset` is one."""

    @property
    def eot(self) -> int:
        """The token that starts every document and occurs nowhere else."""

    def read_tokens(self, start: int, stop: int, /) -> npt.NDArray[np.unsignedinteger]:
        """Tokens [start, stop) of the stream whose sample i is tokens [i*T, i*T + T + 1)."""

    def loss_mask(self, numbers: Numbers, /) -> Mask:
        """Which targets of samples count: bool, shape (n, T)."""

    def documents_between(self, begin: int, end: int, /) -> list[SampleDocument]:
        """The documents in tokens [begin, end), with positions from `begin`."""


@dataclass(slots=True)
class _Window:
    """A packed window.

    begin: its first token in the stream. tokens: its tokens, and the one after them; None once they
    must be read again. parts: int64, shape (n, 2): where its parts begin and end in the window.
    borders: parts `[borders[r], borders[r + 1])` fill row r. counted: the loss mask of the window's
    targets, once asked for. Arrays, not lists: their numbers lie side by side in memory.
    """

    begin: int
    tokens: Callable[[], memoryview | None]
    parts: Numbers
    borders: memoryview
    counted: memoryview | None = None

    def row(self, row: int) -> Numbers:
        """The parts of a row."""
        return self.parts[self.borders[row] : self.borders[row + 1]]


class PackedSource:
    """The rows of a source's windows: as many rows of T tokens as the source has samples.

    Row i is in window `i // rows`, which has the tokens of samples `[w*rows, w*rows + rows)`. The
    last windows that were packed are kept: some kilobytes each, and their tokens, unless these are
    mapped from a disk. Threads can share it. Raises UsageError if the source gives no tokens.
    """

    def __init__(self, source: TokenSource, packing: Packing) -> None:
        for member in ("read_tokens", "eot"):
            if not hasattr(source, member):
                raise UsageError(
                    f"packing needs a source with {member}, such as a TokenDataset, but "
                    f"{type(source).__name__} has none. Leave packing out."
                )
        self._source = source
        self._packing = packing
        self._length = source.sequence_length
        self._tokens = len(source) * self._length
        # Inputs of a window; the last one may have fewer.
        self._window_tokens = packing.rows * self._length
        # In the order of their last use. Without a lock, which a fork could leave locked: each
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
        parts: list[memoryview] = []
        used: dict[int, _Window] = {}
        for number in numbers.tolist():
            at, row = divmod(number, self._packing.rows)
            window = used[at] = used.get(at) or self._window(at)
            if window.counted is None:
                sample = at * self._packing.rows
                samples = np.arange(sample, sample + len(window.borders) - 1)
                window.counted = self._source.loss_mask(samples).data.cast("B")
            parts += [window.counted[begin:end] for begin, end in window.row(row).tolist()]
        return np.frombuffer(b"".join(parts), np.bool_).reshape(len(numbers), self._length)

    def work(self, numbers: Numbers, length: int) -> Numbers:
        """The sum of squared document lengths of each row, cut to rows of `length` tokens."""
        found = np.empty_like(numbers)
        windows, rows = np.divmod(numbers, self._packing.rows)
        for number in np.unique(windows).tolist():
            window = self._window(number)
            # Rows are full, so each part begins where the one before it ends.
            ends = np.cumsum(window.parts[:, 1] - window.parts[:, 0])
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
        window = self._window(number // self._packing.rows)
        for begin, end in window.row(number % self._packing.rows).tolist():
            here = window.begin + begin, window.begin + end
            for part in self._source.documents_between(*here):
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
            window = self._window(number)
            for row in range(len(window.borders) - 1):
                begins, ends = window.row(row).T + window.begin
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

    def _window(self, number: int) -> _Window:
        window = self._windows.pop(number, None) or self._pack(number)
        self._windows[number] = window
        kept = self._packing.shuffle_windows + _MORE_WINDOWS
        if len(self._windows) > kept:
            for old in list(self._windows)[:-kept]:
                self._windows.pop(old, None)
        return window

    def _range(self, window: int) -> tuple[int, int]:
        """The tokens of a window, and the one after them: [begin, stop) of the stream."""
        begin = window * self._window_tokens
        return begin, min(begin + self._window_tokens, self._tokens) + 1

    def _read(self, window: int) -> npt.NDArray[np.unsignedinteger]:
        return self._source.read_tokens(*self._range(window))

    def _pack(self, number: int) -> _Window:
        tokens, length = self._read(number), self._length
        # With the token after the window, so that a redacted document is known by its length.
        starts = np.flatnonzero(tokens == self._source.eot)
        if hasattr(self._source, "within_redacted"):
            begin = number * self._window_tokens
            starts = whole_documents(starts, begin, self._source.within_redacted)
        starts = starts[starts < len(tokens) - 1]
        if not len(starts) or starts[0]:
            starts = np.append(0, starts)
        rows, most = (len(tokens) - 1) // length, self._packing.max_documents
        begins, lengths, borders = pack(starts, rows, length, most)
        parts = np.stack((begins, begins + lengths), axis=1)
        return _Window(number * self._window_tokens, _kept(tokens), parts, borders.data)


def _kept(tokens: npt.NDArray[np.unsignedinteger]) -> Callable[[], memoryview | None]:
    """Gives tokens as long as they are in memory; keeps no mapped file open."""
    if tokens.flags.owndata:
        view = tokens.data
        return lambda: view
    # A part of a mapped shard, which the source has open for some time.
    whole = tokens.base
    if not isinstance(whole, np.ndarray) or whole.flags.writeable or whole.dtype != tokens.dtype:
        return lambda: None
    begin = (tokens.ctypes.data - whole.ctypes.data) // tokens.itemsize
    end, mapped = begin + len(tokens), weakref.ref(whole)

    def part() -> memoryview | None:
        shard = mapped()
        return None if shard is None else shard[begin:end].data

    return part


def fill_packed(
    sources: Sequence[PackedSource],
    which: Numbers,
    numbers: Numbers,
    inputs: Samples,
    targets: Samples,
    starts: Mask | None,
) -> None:
    """Copies row `numbers[i]` of source `which[i]` to row i of arrays of shape (rows, T).

    The sources have one packing. targets: of each input, the token after it in its source. starts:
    True at the start of a row and where tokens from another place follow. None if not needed.
    """
    for at in range(0, len(numbers), _ROWS):
        here = slice(at, at + _ROWS)
        pairs = zip(which[here].tolist(), numbers[here].tolist(), strict=True)
        begins = None if starts is None else starts[here]
        _fill(sources, pairs, inputs[here], targets[here], begins)


def _fill(
    sources: Sequence[PackedSource],
    pairs: Iterable[tuple[int, int]],
    inputs: Samples,
    targets: Samples,
    starts: Mask | None,
) -> None:
    packing = sources[0]._packing
    windows: dict[tuple[int, int], tuple[_Window, memoryview]] = {}
    parts: list[memoryview] = []
    # The same parts, a token later.
    following: list[memoryview] = []
    for number, in_source in pairs:
        at, row = divmod(in_source, packing.rows)
        found = windows.get((number, at))
        if found is None:
            window = sources[number]._window(at)
            found = windows[number, at] = window, window.tokens() or sources[number]._read(at).data
        window, tokens = found
        for begin, end in window.row(row).tolist():
            parts.append(tokens[begin:end])
            following.append(tokens[begin + 1 : end + 1])
    dtypes = {np.dtype(tokens.format) for _, tokens in windows.values()}
    join(inputs, parts, dtypes)
    join(targets, following, dtypes)
    if starts is not None:
        # Rows are full, so a part begins where the one before it ends.
        begins = np.cumsum([0, *map(len, parts[:-1])])
        starts[...] = False
        starts[np.divmod(begins, inputs.shape[1])] = True
