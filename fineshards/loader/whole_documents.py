"""Rows of whole documents: padded, so that none that fits into a row is cut.

The documents that begin in `rows * T` consecutive tokens, a window, are packed best fit decreasing
into as many rows as they take. Of a document of more than T tokens, each T fill a row of their own,
and what remains begins a row, because only an EOT begins a document elsewhere. So does what the
stream begins with, which may be the rest of a document. The rest of a row is EOTs, which do not
count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, quoted
from fineshards.loader.arguments import checked_integer
from fineshards.loader.boundaries import Bools, joined_ranges, whole_documents
from fineshards.loader.packing import best_fit, divided, stable_order
from fineshards.loader.sample_sources import Numbers, Samples
from fineshards.loader.token_dataset import TokenDataset

if TYPE_CHECKING:
    from fineshards.loader.tokens.split_documents import SampleDocument

# Changes when a window is packed differently.
_VERSION = 2


class WholeDocuments:
    """The documents of a dataset, whole, in padded rows: a source for BatchLoader and Mixture.

    For conversations, where a cut document is an answer without its question. Opening it reads all
    tokens once, to find where documents begin, and keeps some 24 bytes per document.

    Args:
        dataset: A TokenDataset.
        rows: Rows per window; 256 by default. More rows are padded less.

    Attributes:
        eot, dtype, vocabulary_size, vocabulary, has_loss_mask: Those of the dataset.

    Raises:
        UsageError: `dataset` is not a TokenDataset, or `rows` is not a positive integer.
        OutputError: A shard is missing or damaged.

    Example:
        >>> from fineshards import BatchLoader, TokenDataset, WholeDocuments
        >>> dataset = TokenDataset(dataset_folder, sequence_length=1024)
        >>> whole = WholeDocuments(dataset)
        >>> len(dataset), len(whole)
        (552, 556)
        >>> with BatchLoader(whole, 8, fields=("inputs", "targets", "loss_mask")) as loader:
        ...     next(loader)["inputs"].shape
        (8, 1024)
    """

    def __init__(self, dataset: TokenDataset, rows: int = 256) -> None:
        if not isinstance(dataset, TokenDataset):
            raise UsageError(f"dataset is {quoted(dataset)}; give a TokenDataset.")
        self.sequence_length, self.eot = dataset.sequence_length, dataset.eot
        self.dtype, self.has_loss_mask = dataset.dtype, dataset.has_loss_mask
        self.vocabulary_size, self.vocabulary = dataset.vocabulary_size, dataset.vocabulary
        self._rows = checked_integer("rows", rows, 1)
        self._dataset = dataset
        begins, lengths, counts = zip(*self._windows(), strict=True)
        # Segment s begins at token begins[s]; all before it have ends[s] tokens. Row r has segments
        # [borders[r], borders[r + 1]).
        self._begins: Numbers = np.concatenate(begins)
        self._ends: Numbers = np.append(0, np.cumsum(np.concatenate(lengths)))
        self._borders: Numbers = np.append(0, np.cumsum(np.concatenate(counts)))

    @property
    def fingerprint(self) -> str:
        """Changes when any row changes."""
        how = f"/whole documents of {self._rows} rows, version {_VERSION}"
        return self._dataset.fingerprint + how

    # Rows end with EOTs that no one should train on.
    has_padding = True

    def __len__(self) -> int:
        return len(self._borders) - 1

    def __getitem__(self, index: int | slice) -> npt.NDArray[np.uint32]:
        """One row and its last label: uint32, shape (T + 1,); of a slice of n, (n, T + 1)."""
        numbers = np.atleast_1d(np.array(range(len(self))[index], np.int64))
        rows = np.empty((len(numbers), self.sequence_length + 1), np.uint32)
        self.gather_into(rows, np.arange(len(numbers)), numbers)
        samples: npt.NDArray[np.uint32] = rows if isinstance(index, slice) else rows[0]
        return samples

    def gather_into(self, out: Samples, rows: Numbers, numbers: Numbers) -> None:
        """Copies rows `numbers` and their last labels to rows of an array; see `Source`."""
        begins, stops, ends = self._segments(numbers)
        _lay(out, rows, self._dataset.stream.join(begins, stops), ends, self.eot)

    def loss_mask(self, numbers: Numbers) -> Bools:
        """Which targets count: bool, shape (len(numbers), T)."""
        mask = np.empty((len(numbers), self.sequence_length + 1), np.bool_)
        begins, stops, ends = self._segments(numbers)
        counted = self._dataset.masks_between(begins, stops)
        _lay(mask, np.arange(len(numbers)), counted, ends, False)
        return mask[:, 1:]

    def within_redacted(self, places: Numbers) -> Bools:
        """Which EOTs of the rows begin no document: within a redacted one, or padding."""
        numbers, columns = np.divmod(places, self.sequence_length)
        first, end = (self._ends[self._borders[numbers + more]] for more in (0, 1))
        at = first + columns
        # The first EOT of the padding begins it.
        within: Bools = at != end
        inside = np.flatnonzero(at < end)
        at = at[inside]
        segments = np.searchsorted(self._ends, at, "right") - 1
        tokens = self._begins[segments] + at - self._ends[segments]
        within[inside] = self._dataset.within_redacted(tokens)
        return within

    def expect(self, shuffle: bool, shuffle_shards: int | None = None) -> None:
        """Prepares for the order in which rows will be read."""
        self._dataset.expect(shuffle, shuffle_shards)

    def request(self, numbers: Numbers) -> None:
        """Requests rows that will be read soon, without waiting for them."""
        if not self._dataset.stream.is_local:
            ranges = self._segments(numbers)[:2]
            self._dataset.stream.request(*ranges)
            self._dataset.request_masks(*ranges)

    def documents(self, index: int) -> list[SampleDocument]:
        """The documents of a row, in its order; see `TokenDataset.documents`."""
        begins, stops, _ = self._segments(np.array([range(len(self))[index]]))
        columns = np.cumsum(stops - begins) - (stops - begins)
        return [
            replace(part, begin=part.begin + column, end=part.end + column)
            for begin, stop, column in np.stack((begins, stops, columns), axis=1).tolist()
            for part in self._dataset.documents_between(begin, stop)
        ]

    def close(self) -> None:
        """Closes all files. The rows can still be used."""
        self._dataset.close()

    def __repr__(self) -> str:
        padding = 1 - int(self._ends[-1]) / (len(self) * self.sequence_length)
        return f"WholeDocuments({self._dataset!r}): {len(self):,} rows, {padding:.2%} padding"

    def _segments(self, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The segments of rows, in their order: where each begins and ends in the stream.

        The segment that fills a row has its last label, too, if there is one. Also: how many tokens
        all rows before each have, and all rows.
        """
        at = joined_ranges(self._borders[numbers], self._borders[numbers + 1])
        begins, sizes = self._begins[at], self._ends[at + 1] - self._ends[at]
        last = (sizes == self.sequence_length) & (begins + sizes < self._dataset.tokens)
        ends = np.append(0, np.cumsum(sizes + last))
        counts = self._borders[numbers + 1] - self._borders[numbers]
        return begins, begins + sizes + last, ends[np.append(0, np.cumsum(counts))]

    def _windows(self) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Of each window: its segments' begins and lengths, and how many each row has."""
        dataset, size = self._dataset, self._rows * self.sequence_length
        # Of the last window in which documents begin; the next one that begins ends its last one.
        starts = np.zeros(1, np.int64)
        for first in range(0, dataset.tokens, size):
            # With the token before, so that a redacted document of both windows is known as one.
            begin = max(0, first - 1)
            tokens = dataset.read_tokens(begin, min(first + size, dataset.tokens))
            eots = np.flatnonzero(tokens == dataset.eot) + begin
            begun = whole_documents(eots, 0, dataset.within_redacted)
            begun = begun[begun > begin]
            if first == 0:
                starts = np.append(starts, begun)
            elif len(begun):
                ends = np.append(starts[1:], begun[0])
                yield pack_whole(starts, ends - starts, self.sequence_length)
                starts = begun
        ends = np.append(starts[1:], dataset.tokens)
        yield pack_whole(starts, ends - starts, self.sequence_length)


def _lay(
    out: npt.NDArray[Any], rows: Numbers, values: npt.NDArray[Any], ends: Numbers, padding: int
) -> None:
    """Copies values `[ends[i], ends[i + 1])` to row `rows[i]`, and pads it."""
    for row, (begin, end) in zip(rows.tolist(), pairwise(ends.tolist()), strict=True):
        out[row, : end - begin] = values[begin:end]
        out[row, end - begin :] = padding


def pack_whole(starts: Numbers, sizes: Numbers, length: int) -> tuple[Numbers, Numbers, Numbers]:
    """Segments in the order of rows: where each begins, its length; and how many each row has.

    starts: in the stream, as its first document may be the rest of one.
    """
    filling, begins, rests = divided(starts, sizes, length)
    # Rests of documents first, each in a row of its own: even where the first token is an EOT, as
    # it is once such a rest is redacted. Then the longest, then the earliest.
    is_rest = (begins == 0) | ~np.isin(begins, starts)
    order = stable_order(np.where(is_rest, 0, length) - rests)
    begins, rests = begins[order], rests[order]
    first, own = len(filling), int(np.count_nonzero(is_rest))
    unit = first + len(rests)
    rows = np.arange(first, unit)
    free = np.append(length - rests[:own], np.full(len(rests) - own, length)) * unit + rows
    fitting = best_fit(np.sort(free).tolist(), (rests[own:] * unit).tolist(), unit)
    all_rows = np.concatenate((np.arange(first), rows[:own], np.array(fitting, np.int64)))
    into = stable_order(all_rows)
    return (
        np.append(filling, begins)[into],
        np.append(np.full(first, length), rests)[into],
        np.bincount(all_rows),
    )
