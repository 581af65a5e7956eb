"""N-grams of words, found in documents by hashes and confirmed by the words themselves.

The key of an n-gram is a polynomial of the hashes of its words, modulo 2**64, which numpy computes
for all documents of a batch at once. A bitmap with 16 bits per n-gram turns most others
away; a sorted array finds the rest. Nothing is decided before the words are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.curation.words.normal_form import simplified_words, word_hashes
from fineshards.shards.tables.hash_sample import splitmix64

# Odd, so that no word's hash loses bits: the fractions of the golden ratio and of the root of 2.
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909))
_BITS_PER_KEY = 16

Keys = npt.NDArray[np.uint64]


class Passage(NamedTuple):
    """Words of an evaluation, and which of its n-grams count.

    words: simplified words, joined by spaces. hashes: theirs, as `word_hashes` gives them. starts:
    numbers of the words at which such n-grams begin. task, line: where it is from.
    """

    words: str
    hashes: bytes
    starts: range
    task: int
    line: int


class Hit(NamedTuple):
    """An n-gram that a document shares with a passage. word: where it begins in the document."""

    passage: Passage
    word: int


class NgramIndex:
    """The n-grams of n words of passages, each with the first passage that has it."""

    def __init__(self, passages: Sequence[Passage], n: int) -> None:
        self._passages = passages
        self._n = n
        hashes, counts = _joined([passage.hashes for passage in passages])
        first, second = (_keys(hashes, n, multiplier) for multiplier in _MULTIPLIERS)
        places = [
            np.arange(begin + passage.starts.start, begin + passage.starts.stop)
            for begin, passage in zip(_begins(counts), passages, strict=True)
        ]
        place = np.concatenate([np.empty(0, np.int64), *places])
        first, second = first[place], second[place]
        order = np.lexsort((place, second, first))
        first, second, place = first[order], second[order], place[order]
        # Of equal n-grams the first stays. Two that have the same 128 bits are taken for equal:
        # their documents would be compared with the words of one of them only.
        new = np.ones(len(place), np.bool_)
        new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._keys, self._places = first[new], place[new]
        self._ends = np.cumsum(counts)
        size = max(16, _BITS_PER_KEY * len(self._keys))
        self._shift = np.uint64(64 - (size - 1).bit_length())
        self._bitmap = np.zeros(1 << (size - 1).bit_length() - 3, np.uint8)
        bits = self._keys >> self._shift
        np.bitwise_or.at(self._bitmap, bits >> np.uint64(3), _bit(bits))

    def __len__(self) -> int:
        return len(self._keys)

    def hits(self, texts: Sequence[str]) -> list[Hit | None]:
        """The first n-gram of each text that a passage has, or None."""
        hashes, counts = _joined(word_hashes(texts))
        keys = _keys(hashes, self._n, _MULTIPLIERS[0])
        bits = keys >> self._shift
        suspects = np.flatnonzero(self._bitmap[bits >> np.uint64(3)] & _bit(bits))
        left = np.searchsorted(self._keys, keys[suspects], "left")
        right = np.searchsorted(self._keys, keys[suspects], "right")
        ends = np.cumsum(counts)
        found: list[Hit | None] = [None] * len(texts)
        known: tuple[int, list[str]] = (-1, [])
        for index in np.flatnonzero(left < right).tolist():
            document = int(np.searchsorted(ends, suspects[index], "right"))
            word = int(suspects[index] - (ends[document] - counts[document]))
            if found[document] or word + self._n > counts[document]:
                continue
            if known[0] != document:
                known = (document, simplified_words(texts[document]))
            ngram = known[1][word : word + self._n]
            for entry in range(left[index], right[index]):
                passage = self._passage_with(entry, ngram)
                if passage:
                    found[document] = Hit(passage, word)
                    break
        return found

    def _passage_with(self, entry: int, ngram: list[str]) -> Passage | None:
        """The passage of an entry if its n-gram has these words."""
        place = int(self._places[entry])
        number = int(np.searchsorted(self._ends, place, "right"))
        begin = int(self._ends[number - 1]) if number else 0
        passage = self._passages[number]
        start = place - begin
        words = passage.words.split(" ")[start : start + self._n]
        return passage if words == ngram else None


def _joined(parts: Sequence[bytes]) -> tuple[Keys, npt.NDArray[np.int64]]:
    """The hashes of the words of all texts, one after the other, and how many each text has."""
    counts = np.array([len(part) // 8 for part in parts], np.int64)
    return np.frombuffer(b"".join(parts), "<u8"), counts


def _keys(hashes: Keys, n: int, multiplier: np.uint64) -> Keys:
    """The keys of the n-grams that begin at each word; 0 where fewer than n words are left."""
    keys = np.zeros(len(hashes), np.uint64)
    windows = max(0, len(hashes) - n + 1)
    for word in range(n if windows else 0):
        keys[:windows] *= multiplier
        keys[:windows] += hashes[word : word + windows]
    return splitmix64(keys)


def _bit(bits: Keys) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (bits & np.uint64(7)).astype(np.uint8))


def _begins(counts: npt.NDArray[np.int64]) -> Iterator[int]:
    return iter((np.cumsum(counts) - counts).tolist())
