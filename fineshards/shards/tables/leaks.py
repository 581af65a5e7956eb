"""Leaks: documents whose exact text is in the other split too, found by the hashes of their texts.

A document belongs to the split that it begins in. Where the split key is the text, nothing can
leak. Elsewhere the document tables have a hash of each text (`text_hash`).

Hashes are compared in ranges, so memory does not depend on the number of documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.job.records import Leaks, ShardRecord
from fineshards.shards.layout import SplitRule, table_name
from fineshards.shards.tables.documents import DocumentTable, table_schema
from fineshards.storage.base import Storage

# Documents per range: 200 MB of hashes.
RANGE_DOCUMENTS = 1 << 24
# Tables that a process reads before its first one of train.
_MOST_TABLES = 1000

# Each text once, with the number of its documents: a text of very many documents (the empty one)
# would make its range too large. Sorted by hash.
_TEXTS = np.dtype([("hash", "<u8"), ("documents", "<u4")])
Texts = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the texts of all shards are compared: in a number of ranges of hashes.

    test_shards: the shards of test, if their texts fit into memory: then texts of train are looked
    up in them as they are read, and only those that leak go further. Otherwise None.
    """

    ranges: int
    test_shards: tuple[str, ...] | None

    @classmethod
    def of(cls, records: Sequence[ShardRecord], most: int = RANGE_DOCUMENTS) -> Comparison:
        """The comparison of the texts in shards; most: documents in memory, about."""
        test = [record for record in records if record.split == "test"]
        fits = len(test) <= _MOST_TABLES and sum(record.documents for record in test) <= most
        return cls(
            number_of_ranges(sum(record.documents for record in records), most),
            tuple(sorted(record.name for record in test)) if fits else None,
        )


@dataclass(frozen=True, slots=True)
class ShardTexts:
    """The texts in one range of hashes of the documents that begin in a shard.

    texts: the bytes of an array of Texts, because Beam and pickle copy bytes best.
    """

    split: str
    shard: str
    texts: bytes


@dataclass(frozen=True, slots=True)
class LeakExample:
    """A text that is in both splits, by its hash, and a shard of each split where it begins."""

    text_hash: int
    test_shard: str
    train_shard: str


@dataclass(frozen=True, slots=True)
class LeakCount:
    """What leaks in a range of hashes, or in all; example: None if nothing does."""

    leaks: Leaks
    example: LeakExample | None = None

    @classmethod
    def total(cls, found: Sequence[LeakCount]) -> LeakCount:
        """The sum over all ranges, with the example of the smallest hash."""
        leaks = Leaks(
            sum(each.leaks.test_documents for each in found),
            sum(each.leaks.train_documents for each in found),
        )
        examples = [each.example for each in found if each.example is not None]
        return cls(leaks, min(examples, key=lambda each: each.text_hash, default=None))


NOTHING = LeakCount(Leaks(0, 0))


class KnownTexts:
    """Texts, or those in one range, to compare others with."""

    def __init__(self, parts: Iterable[Texts]) -> None:
        texts = np.concatenate([np.empty(0, _TEXTS), *parts])
        self._hashes, position = np.unique(texts["hash"], return_inverse=True)
        self._documents = np.zeros(len(self._hashes), np.int64)
        np.add.at(self._documents, position, texts["documents"])
        self._met = np.zeros(len(self._hashes), np.bool_)

    def compare(self, others: Texts) -> int:
        """The number of documents among others whose text is known; threads may share it.

        Notes which texts these are.
        """
        position, same = self._find(others)
        self._met[position[same]] = True
        return int(others["documents"][same].sum(dtype=np.int64))

    def among(self, others: Texts) -> Texts:
        """Those of others that are known."""
        return others[self._find(others)[1]]

    def _find(self, others: Texts) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Where each other text would be, and whether it is there."""
        if not len(self._hashes):
            return np.zeros(len(others), np.int64), np.zeros(len(others), np.bool_)
        # Beyond the last hash, any position will do: what is there is another hash.
        last = len(self._hashes) - 1
        position = np.minimum(np.searchsorted(self._hashes, others["hash"]), last)
        return position, self._hashes[position] == others["hash"]

    def met(self) -> int:
        """The number of documents with known texts that others were found to have."""
        return int(self._documents[self._met].sum())

    def first_met(self) -> int | None:
        """The smallest hash of a known text that others were found to have; None if none has."""
        shared = self._hashes[self._met]
        return int(shared[0]) if len(shared) else None


def count_texts(hashes: npt.NDArray[np.uint64]) -> Texts:
    """Each hash once, with its number of documents."""
    found, documents = np.unique(hashes, return_counts=True)
    texts = np.empty(len(found), _TEXTS)
    texts["hash"], texts["documents"] = found, documents
    return texts


def read_columns(storage: Storage, shard: str, rule: SplitRule, names: list[str]) -> pa.Table:
    """Some columns of a shard's document table, and nothing else of it."""
    with storage.open(table_name(shard)) as opened:
        return DocumentTable.read_columns(opened, table_schema(rule, 3), names)


def read_texts(storage: Storage, shard: str, rule: SplitRule) -> Texts:
    """The texts of the documents that begin in a shard, from its table."""
    table = read_columns(storage, shard, rule, ["start", "text_hash"])
    return count_texts(table["text_hash"].to_numpy()[table["start"].to_numpy() == 0])


def number_of_ranges(documents: int, most: int) -> int:
    """How many ranges of hashes there must be for at most about `most` documents in each."""
    return max(1, -(-documents // most))


def cut(texts: Texts, ranges: int) -> list[Texts]:
    """The texts in each of a number of equal ranges of hashes."""
    borders = [(number << 64) // ranges for number in range(1, ranges)]
    return np.split(texts, np.searchsorted(texts["hash"], np.array(borders, np.uint64)))


def parts_of(split: str, shard: str, texts: Texts, ranges: int) -> list[tuple[int, ShardTexts]]:
    """The parts of a shard's texts, each with its range; those without texts are left out."""
    return [
        (number, ShardTexts(split, shard, within.tobytes()))
        for number, within in enumerate(cut(texts, ranges))
        if len(within)
    ]


def count_leaks(parts: Iterable[ShardTexts]) -> LeakCount:
    """What leaks within a range, from all its parts in any order."""
    texts = {(part.split, part.shard): np.frombuffer(part.texts, _TEXTS) for part in parts}
    in_test = KnownTexts(found for (split, _), found in texts.items() if split == "test")
    train_documents = sum(
        in_test.compare(found) for (split, _), found in texts.items() if split == "train"
    )
    leaks = Leaks(in_test.met(), train_documents)
    text_hash = in_test.first_met()
    if text_hash is None:
        return LeakCount(leaks)
    first_shard = {
        split: min(
            shard
            for (other, shard), found in texts.items()
            if other == split and (found["hash"] == text_hash).any()
        )
        for split in ("test", "train")
    }
    return LeakCount(leaks, LeakExample(text_hash, first_shard["test"], first_shard["train"]))


def describe_example(storage: Storage, example: LeakExample, rule: SplitRule) -> str:
    """The two documents of an example, by their sources."""
    places = []
    for split, shard in (("test", example.test_shard), ("train", example.train_shard)):
        table = read_columns(storage, shard, rule, ["start", "text_hash", "file", "row"])
        begins = table["start"].to_numpy() == 0
        (index, *_) = np.flatnonzero(
            begins & (table["text_hash"].to_numpy() == example.text_hash)
        ).tolist()
        places.append(f"row {table['row'][index]} of {table['file'][index]} ({split})")
    return " and ".join(places)
