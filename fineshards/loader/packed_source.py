"""Reads packed rows: rows of whole documents, from a source that gives consecutive tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.loader.boundaries import whole_documents
from fineshards.loader.packing import Packing, pack
from fineshards.loader.sample_sources import Numbers, Samples, Source

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
    """A packed window. It has lists, because a row takes a few items of each.

    begin: its first token in the stream. tokens: its tokens, and the one after them; None where
    the source gives them without reading, because keeping them would keep its file open. rows:
    segments `[rows[r], rows[r + 1])` are in row r. begins, ends: where segments are in the window.
    counted: the loss mask of the window's targets, once asked for.
    """

    begin: int
    tokens: memoryview | None
    rows: list[int]
    begins: list[int]
    ends: list[int]
    counted: memoryview | None = None


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
        # In the order of their last use. Without a lock, which a fork could leave locked: each
        # operation on the dict is atomic, and at worst two threads pack the same window.
        self._windows: dict[int, _Window] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_windows": {}}

    def fill(
        self,
        inputs: Samples,
        targets: Samples,
        starts: Mask | None,
        rows: Numbers,
        numbers: Numbers,
    ) -> None:
        """Copies row `numbers[i]` to `rows[i]` of arrays of shape (any, T).

        targets: of each input, the token after it in the source. starts: True at the start of a row
        and where tokens from another place follow; not if the row would have more than
        `max_documents`. None if not needed.
        """
        for at in range(0, len(rows), _ROWS):
            self._fill(inputs, targets, starts, rows[at : at + _ROWS], numbers[at : at + _ROWS])

    def loss_mask(self, numbers: Numbers) -> Mask:
        """The source's loss mask for the targets of rows: bool, shape (len(numbers), T)."""
        if not hasattr(self._source, "loss_mask"):
            return np.ones((len(numbers), self._length), np.bool_)
        parts: list[memoryview] = []
        for window, first, stop in self._segments(numbers):
            if window.counted is None:
                sample = window.begin // self._length
                samples = np.arange(sample, sample + len(window.rows) - 1)
                window.counted = self._source.loss_mask(samples).data.cast("B")
            counted = window.counted
            for begin, end in zip(window.begins[first:stop], window.ends[first:stop], strict=True):
                parts.append(counted[begin:end])
        return np.frombuffer(b"".join(parts), np.bool_).reshape(len(numbers), self._length)

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
        found = []
        for window, first, stop in self._segments(np.array([number])):
            column = 0
            for begin, end in zip(window.begins[first:stop], window.ends[first:stop], strict=True):
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
            for row, (first, stop) in enumerate(pairwise(window.rows)):
                parts = zip(window.begins[first:stop], window.ends[first:stop], strict=True)
                if any(window.begin + at < end and begin < window.begin + to for at, to in parts):
                    found.append(number * size + row)
        return found

    def request(self, numbers: Numbers) -> None:
        """Asks the source for the windows that rows are in, without waiting for them."""
        ask, size = getattr(self._source, "request_tokens", None), self._packing.rows
        if ask is not None:
            for window in np.unique(numbers // size).tolist():
                if window not in self._windows:
                    ask(*self._range(window))

    def _fill(
        self,
        inputs: Samples,
        targets: Samples,
        starts: Mask | None,
        rows: Numbers,
        numbers: Numbers,
    ) -> None:
        parts: list[memoryview] = []
        nexts: list[int] = []
        counts: list[int] = []
        opened: dict[int, memoryview] = {}
        for window, first, stop in self._segments(numbers):
            tokens = window.tokens or opened.get(window.begin)
            if tokens is None:
                tokens = opened[window.begin] = self._read(window.begin // self._window_tokens).data
            for begin, end in zip(window.begins[first:stop], window.ends[first:stop], strict=True):
                parts.append(tokens[begin:end])
                nexts.append(tokens[end])
            counts.append(stop - first)
        # Joining copies many short parts several times faster than numpy does.
        joined = np.frombuffer(b"".join(parts), parts[0].format).reshape(-1, self._length)
        last = int(rows[0]) + len(rows)
        # A slice takes half the time of an array of numbers; only mixtures need that.
        in_order = len(rows) == 1 or bool((np.diff(rows) == 1).all())
        into = slice(int(rows[0]), last) if in_order else rows
        inputs[into] = joined
        targets[into, :-1] = joined[:, 1:]
        # The last token of each part is not followed by its successor.
        row_of, ends = np.repeat(rows, counts), np.cumsum([len(part) for part in parts])
        targets[row_of, (ends - 1) % self._length] = nexts
        if starts is not None:
            begins = np.append(0, ends[:-1]) % self._length
            most = self._packing.max_documents
            if most is not None:
                before = np.repeat(np.cumsum(counts) - counts, counts)
                few = np.arange(len(begins)) - before < most
                row_of, begins = row_of[few], begins[few]
            starts[rows] = False
            starts[row_of, begins] = True

    def _segments(self, numbers: Numbers) -> Iterator[tuple[_Window, int, int]]:
        """Of each row its window, and its segments there: [first, stop)."""
        size, used = self._packing.rows, dict[int, _Window]()
        for number in numbers.tolist():
            at, row = divmod(number, size)
            window = used.get(at)
            if window is None:
                window = used[at] = self._window(at)
            yield window, window.rows[row], window.rows[row + 1]

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
        first = window * self._packing.rows
        stop = min(first + self._packing.rows, len(self))
        return first * self._length, stop * self._length + 1

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
        ends = begins + lengths
        return _Window(
            number * self._window_tokens,
            tokens.data if tokens.flags.owndata else None,
            borders.tolist(),
            begins.tolist(),
            ends.tolist(),
        )

    @property
    def _window_tokens(self) -> int:
        """Inputs of a window; the last one may have fewer."""
        return self._packing.rows * self._length
