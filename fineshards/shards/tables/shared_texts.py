"""Documents whose exact text others have, counted by the hashes in the document tables.

One comparison gives two counts. Leaks are documents whose text is in the other split too; a
document belongs to the split that it begins in. Repeats are documents that an append adds and whose
text the dataset had before; a text that only the new documents have is no repeat, however often.
Empty texts are texts like any other.

Where the split key is the text, nothing can leak, and tables have 32 bits of its hash. There a text
is that and its number of tokens, and among n earlier documents a new one finds its like by chance
with a probability of roughly n / 2**42. Elsewhere they have a hash of 64 bits (`text_hash`).

Only documents of test and those that an append adds are held in memory, in ranges of their hashes.
The others are read once for each range. So memory does not depend on the number of documents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from fineshards.shards.counts import Sums
from fineshards.shards.job.records import Leaks, ShardRecord
from fineshards.shards.layout import SPLITS, table_name
from fineshards.shards.split_rule import ONE_STREAM, SplitRule
from fineshards.shards.tables.documents import DocumentTable, table_schema
from fineshards.storage.base import Storage

# Documents per range that are held: 0.4 GB of hashes and counts.
RANGE_DOCUMENTS = 1 << 23
# Tables that are read side by side for an example.
_LOOKING = 8

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents of a shard, as rows of its table.

    train, earlier: 1 if they are of train, and if the dataset had them before an append; else 0.
    """

    shard: str
    first: int
    last: int
    train: int
    earlier: int

    @property
    def held(self) -> bool:
        """Whether they are held in memory, to be compared with all others."""
        return not (self.train and self.earlier)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared: each document once, in a number of ranges of hashes."""

    rows: tuple[Rows, ...]
    ranges: int

    @classmethod
    def of(
        cls, records: Iterable[ShardRecord], earlier: Sequence[Sums], rule: SplitRule
    ) -> Comparison:
        """The comparison of all shards. earlier: what each stream had before an append, if any."""
        records = sorted(records, key=lambda record: (record.split, record.index))
        compared = []
        for number, stream in enumerate(rule.streams):
            before = earlier[number].documents if earlier else sys.maxsize
            of_stream = [record for record in records if stream in (record.split, ONE_STREAM)]
            for record, following in zip(of_stream, [*of_stream[1:], None], strict=False):
                # A table's first document may begin in the shard before, and its last one end in
                # the next: its split is known where it begins, its number of tokens where it ends.
                first, last = 0, record.pieces
                if rule.may_leak:
                    first = record.pieces - record.documents
                elif following is not None:
                    last -= following.pieces - following.documents
                middle = min(max(before - record.first_document, first), last)
                train = int(record.split == "train" or not rule.may_leak)
                parts = (first, middle, 1), (middle, last, 0)
                compared += [Rows(record.name, a, b, train, old) for a, b, old in parts if a < b]
        held = sum(rows.last - rows.first for rows in compared if rows.held)
        # Nothing is read where there is nothing to compare with.
        return cls(tuple(compared if held else ()), max(1, -(-held // RANGE_DOCUMENTS)))


@dataclass(frozen=True, slots=True)
class SharedTexts:
    """What documents share in a range of hashes, or in all.

    leaking, repeated: the smallest hash of a text in both splits, and of one that is new and
    earlier; None if there is none.
    """

    leaks: Leaks
    repeats: int
    leaking: int | None
    repeated: int | None

    @classmethod
    def total(cls, ranges: Sequence[SharedTexts]) -> SharedTexts:
        """The sum over all ranges."""
        leaking, repeated = (
            min((text for text in texts if text is not None), default=None)
            for texts in ([one.leaking for one in ranges], [one.repeated for one in ranges])
        )
        leaks = Leaks(
            sum(one.leaks.test_documents for one in ranges),
            sum(one.leaks.train_documents for one in ranges),
        )
        return cls(leaks, sum(one.repeats for one in ranges), leaking, repeated)


def compare_range(
    storage: Storage, rule: SplitRule, comparison: Comparison, number: int, threads: int
) -> SharedTexts:
    """What documents share in a range of hashes."""
    # 2**64 does not fit into uint64.
    low, high = ((at << 64) // comparison.ranges for at in (number, number + 1))
    borders = np.array([low, high - 1], np.uint64)

    def read(rows: Rows) -> tuple[Rows, Hashes, npt.NDArray[np.int64]]:
        hashes = _read_hashes(storage, rule, rows)
        within = hashes[(hashes >= borders[0]) & (hashes <= borders[1])]
        # Each text once: a text of very many documents (the empty one) would need much memory.
        return rows, *np.unique(within, return_counts=True)

    with ThreadPoolExecutor(threads) as pool:
        held = list(pool.map(read, (rows for rows in comparison.rows if rows.held)))
        # To count NumPy sorts; without that it has a hash table, many times slower for so many.
        every = np.concatenate([np.empty(0, np.uint64), *(hashes for _, hashes, _ in held)])
        texts, _ = np.unique(every, return_counts=True)
        # How many documents have them: [train, earlier, text].
        documents, lock = np.zeros((2, 2, len(texts)), np.int64), Lock()

        def add(rows: Rows, hashes: Hashes, counts: npt.NDArray[np.int64]) -> None:
            if len(texts):
                # Beyond the last text, any place will do: what is there is another one.
                place = np.minimum(np.searchsorted(texts, hashes), len(texts) - 1)
                same = texts[place] == hashes
                with lock:
                    documents[rows.train, rows.earlier][place[same]] += counts[same]

        for part in held:
            add(*part)
        del held, every
        rest = (rows for rows in comparison.rows if not rows.held)
        for _ in pool.map(lambda rows: add(*read(rows)), rest):
            pass
    (test, train), (new, earlier) = documents.sum(axis=1), documents.sum(axis=0)
    leak, repeat = (test > 0) & (train > 0), (new > 0) & (earlier > 0)
    return SharedTexts(
        Leaks(int(test[leak].sum()), int(train[leak].sum())),
        int(new[repeat].sum()),
        *(int(texts[many][0]) if many.any() else None for many in (leak, repeat)),
    )


def example(
    storage: Storage, rule: SplitRule, comparison: Comparison, text_hash: int, apart: str
) -> str:
    """Two documents with the hash of a text, which both have, by their sources.

    apart: the field of Rows that tells them apart; of `train`, their splits are said too.
    """

    def find(rows: Rows) -> tuple[Rows, npt.NDArray[np.int64]]:
        return rows, np.flatnonzero(_read_hashes(storage, rule, rows) == text_hash)

    places = []
    for value in (0, 1):
        side = [rows for rows in comparison.rows if getattr(rows, apart) == value]
        with ThreadPoolExecutor(_LOOKING) as pool:
            looked = pool.map(find, side)
            rows, at = next((rows, rows.first + int(at[0])) for rows, at in looked if len(at))
            pool.shutdown(cancel_futures=True)
        with storage.open(table_name(rows.shard)) as opened:
            table = DocumentTable.read_columns(opened, table_schema(rule), ["file", "row"])
        split = f" ({SPLITS[value]})" if apart == "train" else ""
        places.append(f"row {table['row'][at]} of {table['file'][at]}{split}")
    return " and ".join(places)


def _read_hashes(storage: Storage, rule: SplitRule, rows: Rows) -> Hashes:
    """What texts of documents are compared by. Nothing else of their table is read."""
    names = ["text_hash"] if rule.may_leak else ["split_hash", "start", "length"]
    with storage.open(table_name(rows.shard)) as opened:
        table = DocumentTable.read_columns(opened, table_schema(rule), names)
    stored, *tokens = (table[name].to_numpy()[rows.first : rows.last] for name in names)
    hashes: Hashes = stored.astype(np.uint64)
    if tokens:
        hashes = hashes << np.uint64(32) | sum(tokens).astype(np.uint64)
    return hashes
