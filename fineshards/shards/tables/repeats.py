"""Repeats: documents that an append adds and whose text the dataset had before.

Texts are compared by their hashes in the document tables. Where the split key is the text, a table
has 32 bits of the hash; there a text is its hash and its number of tokens, and among n earlier
documents a new one finds its like by chance with a probability of roughly n / 2**42.

A document counts in the shard that it ends in, where its number of tokens is known. Empty texts are
texts like any other. A text that occurs only in the new documents is no repeat, however often.

Only hashes of new documents are held, in ranges, so memory does not depend on the number of
documents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fineshards.shards.counts import Sums
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.layout import ONE_STREAM, SplitRule
from fineshards.shards.tables.leaks import (
    RANGE_DOCUMENTS,
    KnownTexts,
    Texts,
    count_texts,
    cut,
    number_of_ranges,
    read_columns,
)
from fineshards.storage.base import Storage


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The documents that end in a shard, or some of them: rows of its table."""

    shard: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Sides:
    """The documents that an append adds, and those that the dataset had before."""

    new: tuple[RowSpan, ...]
    earlier: tuple[RowSpan, ...]

    @classmethod
    def of(cls, records: Sequence[ShardRecord], earlier: Sequence[Sums], rule: SplitRule) -> Sides:
        """The sides of a dataset. records: of all shards. earlier: what each stream had before."""
        sides: tuple[list[RowSpan], list[RowSpan]] = [], []
        for stream, held in zip(rule.streams, earlier, strict=True):
            of_stream = [each for each in records if stream in (each.split, ONE_STREAM)]
            of_stream.sort(key=lambda record: (record.split, record.index))
            for record, following in zip(of_stream, [*of_stream[1:], None], strict=False):
                # A table's last document may go on in the next shard.
                goes_on = following is not None and following.pieces > following.documents
                stop = record.pieces - goes_on
                middle = min(max(held.documents - record.first_document, 0), stop)
                for rows, first, last in ((sides[0], middle, stop), (sides[1], 0, middle)):
                    if first < last:
                        rows.append(RowSpan(record.name, first, last))
        return cls(tuple(sides[0]), tuple(sides[1]))

    @property
    def ranges(self) -> int:
        """In how many ranges of hashes the new documents are held."""
        return number_of_ranges(sum(rows.last - rows.first for rows in self.new), RANGE_DOCUMENTS)


@dataclass(frozen=True, slots=True)
class RepeatCount:
    """What repeats in a range of hashes, or in all. text_hash: the smallest; None if none does."""

    documents: int
    text_hash: int | None = None

    @classmethod
    def total(cls, found: Sequence[RepeatCount]) -> RepeatCount:
        """The sum over all ranges."""
        hashes = [each.text_hash for each in found if each.text_hash is not None]
        return cls(sum(each.documents for each in found), min(hashes, default=None))


def count_repeats(
    storage: Storage, rule: SplitRule, sides: Sides, number: int, threads: int
) -> RepeatCount:
    """The new documents in a range of hashes whose text is that of an earlier one."""
    read = partial(_read_range, storage, rule, number, sides.ranges)
    earlier = sides.earlier if sides.new else ()  # which nothing can repeat
    return RepeatCount(*_compared(map(read, sides.new), earlier, read, threads))


def repeats_among(
    storage: Storage,
    rule: SplitRule,
    hashes: npt.NDArray[np.uint64],
    records: Sequence[ShardRecord],
    threads: int,
) -> int:
    """How many of some hashes of documents are those of texts in a dataset's shards."""
    earlier = Sides.of(records, [Sums(sys.maxsize, 0)] * len(rule.streams), rule).earlier
    read = partial(_read_range, storage, rule, 0, 1)
    return _compared([count_texts(hashes)], earlier, read, threads)[0]


def _compared(
    new: Iterable[Texts], earlier: Sequence[RowSpan], read: Callable[[RowSpan], Texts], threads: int
) -> tuple[int, int | None]:
    """The number of new documents whose text is an earlier one's, and the smallest such hash."""
    held = KnownTexts(new)
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda rows: held.compare(read(rows)), earlier):
            pass
    return held.met(), held.first_met()


def hash_columns(rule: SplitRule) -> list[str]:
    """The columns of the document tables that have hashes of texts."""
    return ["text_hash"] if rule.may_leak else ["split_hash"]


def text_hashes(
    rule: SplitRule, columns: dict[str, npt.NDArray[np.generic]], tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """What texts are compared by, from the columns of their documents' hashes; uint64."""
    if rule.may_leak:
        return columns["text_hash"].astype(np.uint64)
    return columns["split_hash"].astype(np.uint64) << np.uint64(32) | tokens.astype(np.uint64)


def describe_example(storage: Storage, rule: SplitRule, sides: Sides, text_hash: int) -> str:
    """A new document with a hash, and an earlier one, by their sources."""
    return " and ".join(
        next(filter(None, (_place(storage, rule, rows, text_hash) for rows in side)))
        for side in (sides.new, sides.earlier)
    )


def _place(storage: Storage, rule: SplitRule, rows: RowSpan, text_hash: int) -> str | None:
    (found, *_) = [*np.flatnonzero(_read_hashes(storage, rule, rows) == text_hash).tolist(), None]
    if found is None:
        return None
    table = read_columns(storage, rows.shard, rule, ["file", "row"])
    at = rows.first + found
    return f"row {table['row'][at]} of {table['file'][at]}"


def _read_range(
    storage: Storage, rule: SplitRule, number: int, ranges: int, rows: RowSpan
) -> Texts:
    texts = count_texts(_read_hashes(storage, rule, rows))
    # A copy, so that the other ranges are not kept.
    return cut(texts, ranges)[number].copy()


def _read_hashes(storage: Storage, rule: SplitRule, rows: RowSpan) -> npt.NDArray[np.uint64]:
    """The hashes of documents, uint64. Nothing else of their table is read."""
    names = hash_columns(rule) + ([] if rule.may_leak else ["start", "length"])
    table = read_columns(storage, rows.shard, rule, names)
    columns = {name: table[name].to_numpy()[rows.first : rows.last] for name in names}
    tokens = np.zeros(0, np.int64) if rule.may_leak else columns["start"] + columns["length"]
    return text_hashes(rule, columns, tokens)
