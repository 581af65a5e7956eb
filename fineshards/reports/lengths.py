"""How long the documents of a dataset are, from its document tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np
import numpy.typing as npt

from fineshards.shards.dataset_files import Dataset
from fineshards.shards.tables.hash_sample import splitmix64

# What is read of a large dataset: some hundred requests, and 80 MB of lengths.
MOST_TABLES = 1_024
MOST_PIECES = 10_000_000
# Tables that are read at the same time.
_THREADS = 8
# Documents that are named as the shortest and the longest: some may have no text.
_NAMED = 8
# Sequence lengths that models are trained with.
SEQUENCE_LENGTHS = tuple(1024 << power for power in range(8))


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Documents of `at_least` to `below - 1` tokens, and their tokens."""

    at_least: int
    below: int
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of documents in tokens, with their EOT.

    tables: document tables that were read, of `of_tables`. documents, tokens: in these. A document
    counts in the shard that it ends in. bins: from that of the shortest document to that of the
    longest, two per power of two. fits: each sequence length, up to the one that fits all, with the
    documents that are no longer, and the tokens of these. median: half of them are no longer.
    shortest_documents, longest_documents: numbers in the dataset of some, the shortest of two
    tokens or more first, and the longest first.
    """

    tables: int
    of_tables: int
    documents: int
    tokens: int
    shortest: int
    median: int
    longest: int
    bins: tuple[LengthBin, ...]
    fits: tuple[tuple[int, int, int], ...]
    shortest_documents: tuple[int, ...] = ()
    longest_documents: tuple[int, ...] = ()


def lengths_of(dataset: Dataset) -> Lengths:
    """The lengths of all documents, or of those in a sample of the shards.

    A hash of their positions chooses the shards, so the sample is always the same.
    """
    shards = dataset.manifest.shards
    positions = _chosen(dataset)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda position: _ended(dataset, position), positions))
    numbers, lengths = np.concatenate(found, axis=1)
    order = np.argsort(lengths, kind="stable")
    numbers, lengths = numbers[order], lengths[order]
    if not len(lengths):  # a sample of shards in which no document ends
        return Lengths(len(positions), len(shards), 0, 0, 0, 0, 0, (), ())
    # Sums up to each length; int64 holds those of any dataset.
    sums = np.concatenate([[0], np.cumsum(lengths)])

    def up_to(length: int) -> tuple[int, int]:
        count = int(np.searchsorted(lengths, length, side="right"))
        return count, int(sums[count])

    return Lengths(
        tables=len(positions),
        of_tables=len(shards),
        documents=len(lengths),
        tokens=int(sums[-1]),
        shortest=int(lengths[0]),
        median=int(lengths[(len(lengths) - 1) // 2]),
        longest=int(lengths[-1]),
        bins=tuple(
            LengthBin(begin, end, *np.subtract(up_to(end - 1), up_to(begin - 1)).tolist())
            for begin, end in _edges(int(lengths[0]), int(lengths[-1]))
        ),
        fits=tuple(
            (length, *up_to(length))
            for before, length in pairwise((0, *SEQUENCE_LENGTHS))
            if before < lengths[-1]
        ),
        shortest_documents=tuple(numbers[lengths > 1][:_NAMED].tolist()),
        longest_documents=tuple(numbers[::-1][:_NAMED].tolist()),
    )


def _chosen(dataset: Dataset) -> list[int]:
    """The positions of the shards whose tables are read, ascending."""
    shards = dataset.manifest.shards
    order = np.argsort(splitmix64(np.arange(len(shards), dtype=np.uint64)), kind="stable")
    pieces = np.cumsum([shards[position].pieces for position in order.tolist()])
    count = max(1, min(bisect_right(pieces.tolist(), MOST_PIECES), MOST_TABLES))
    return sorted(order[:count].tolist())


def _ended(dataset: Dataset, position: int) -> npt.NDArray[np.int64]:
    """Numbers in the dataset and lengths of the documents that end in a shard, shape (2, n)."""
    table = dataset.columns(position, ["document", "start", "length"])
    documents = table["document"].to_numpy()
    first = dataset.manifest.first_number(dataset.manifest.shards[position].split)
    lengths = table["start"].to_numpy() + table["length"].to_numpy()
    ended = len(lengths) - _goes_on(dataset, position, int(documents[-1]))
    return np.stack([documents[:ended] + first, lengths[:ended]])


def _goes_on(dataset: Dataset, position: int, document: int) -> bool:
    """Whether the last document of a shard is also in the next one, which its record says."""
    manifest = dataset.manifest
    if position + 1 == len(manifest.shards):
        return False
    this, following = manifest.shards[position : position + 2]
    apart = manifest.settings.split.by_document and this.split != following.split
    return not apart and following.first_document == document


def _edges(shortest: int, longest: int) -> Iterator[tuple[int, int]]:
    """Bins whose ends are 1, 2, 3, 4, 6, 8, 12, …, from one length to another."""
    ends = [1, *(end for power in range(1, 62) for end in (1 << power, 3 << (power - 1)))]
    first = bisect_right(ends, shortest) - 1
    begins = list(takewhile(lambda end: end <= longest, ends[first:]))
    return zip(begins, ends[first + 1 : first + 1 + len(begins)], strict=True)
