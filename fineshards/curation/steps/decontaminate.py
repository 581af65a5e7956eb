"""Drops documents that share n-grams of words with evaluations.

The key of an n-gram is a polynomial of the hashes of its words, modulo 2**64, which numpy computes
for all documents of a batch at once. A bitmap with 16 bits per n-gram turns most others
away; a sorted array finds the rest. Nothing is decided before the words are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.curation.batch import Batch
from fineshards.curation.evaluations import chosen, records, strings_in, task_of
from fineshards.curation.parameters import Positive, some
from fineshards.curation.reference_files import Pinned, pin_pattern, pinned_pattern
from fineshards.curation.step import Judge, Outcome
from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import (
    joined,
    ngram_numbers,
    simplified_words,
    word_hashes,
)
from fineshards.errors import UsageError
from fineshards.shards.tables.hash_sample import splitmix64

# Odd, so that no word's hash loses bits: the fractions of the golden ratio and of the root of 2.
_BASES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909))
_BITS_PER_KEY = 16


class Witness(NamedTuple):
    """What a document shares with an evaluation.

    task, file, line: where the passage is: its task, file and line (or record), from 1. ngram: the
    words that are shared, simplified.
    """

    task: str
    file: str
    line: int
    ngram: str


@dataclass(frozen=True)
class Decontaminate(Judge, name="decontaminate"):
    """Drops a document if it has `ngram` words in a row that an evaluation has.

    Texts are compared without case, punctuation, accents and numbers, as datatrove simplifies them;
    words are what stands between spaces then. The reason is `contaminated:TASK`, where the task is
    the name of the evaluation's file without its endings; of several tasks, the one whose file is
    first by path, for the first such words of the document. Hashes find candidates; words decide.
    Documents with fewer words than `ngram` are kept, and texts of evaluations with fewer words find
    nothing.

    Each worker holds the evaluations: about 5 MB of memory per MB of text, which is 1.5 GB for all
    of the common benchmarks. Use `seen_in` for what is larger.

    Args:
        files: Patterns of evaluation files, local or gs://: JSON Lines, csv, tsv or Parquet.
        ngram: Words in a row that must be shared.
        evaluation_columns: The columns to compare, each text by itself. None: all strings of a
            record, also those within its lists and objects.

    Example:
        >>> Decontaminate(["evaluations/*.jsonl"], ngram=12).ngram
        12
    """

    files: Annotated[tuple[str, ...], some("pattern of files")]
    ngram: Positive = 13
    evaluation_columns: Annotated[tuple[str, ...], some("column")] | None = None

    def pins(self) -> dict[str, str]:
        """See Step. Raises UsageError if no text of the evaluations is long enough."""
        files = [file for pattern in self.files for file in pin_pattern(pattern)]
        if not len(_index(self, self._files())):
            raise UsageError(
                f"decontaminate: ngram is {self.ngram}, but no text in {', '.join(self.files)} has "
                "that many words. Choose fewer, or other columns."
            )
        return normal_form.pins() | {file.path: file.sha256 for file in files}

    def apply(self, batch: Batch) -> Outcome:
        files = self._files()
        hits = _index(self, files).hits(batch.strings)
        return Outcome(
            [hit and f"contaminated:{task_of(files[hit.passage.task].path)}" for hit in hits]
        )

    def witness(self, text: str) -> Witness | None:
        """What a text shares with an evaluation; None if nothing."""
        [hit] = _index(self, self._files()).hits([text])
        if hit is None:
            return None
        path = self._files()[hit.passage.task].path
        words = simplified_words(text)[hit.word : hit.word + self.ngram]
        return Witness(task_of(path), path, hit.passage.line, " ".join(words))

    def _files(self) -> tuple[Pinned, ...]:
        return tuple(sorted({file for names in self.files for file in pinned_pattern(names)}))

    def passages(self, task: int, file: Pinned) -> Iterator[Passage]:
        """Yields the texts of an evaluation file that have enough words."""
        for record in records(file):
            values: Any = record.values
            if self.evaluation_columns is not None:
                values = chosen(file, record, self.evaluation_columns)
            for text in strings_in(values):
                [hashes] = word_hashes([text])
                if len(hashes) >= 8 * self.ngram:
                    yield Passage(" ".join(simplified_words(text)), hashes, task, record.line)


@lru_cache(maxsize=2)
def _index(step: Decontaminate, files: tuple[Pinned, ...]) -> NgramIndex:
    passages = (step.passages(task, file) for task, file in enumerate(files))
    return NgramIndex([*chain.from_iterable(passages)], step.ngram)


class Passage(NamedTuple):
    """A text of an evaluation.

    words: simplified words, joined by spaces. hashes: theirs, as `word_hashes` gives them. task,
    line: where it is from.
    """

    words: str
    hashes: bytes
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
        hashes, counts = joined([passage.hashes for passage in passages])
        self._ends = np.cumsum(counts)
        # The words at which an n-gram begins, and not at the end of a passage.
        place = np.flatnonzero(np.arange(len(hashes)) + n <= np.repeat(self._ends, counts))
        first, second = (splitmix64(ngram_numbers(hashes, n, base))[place] for base in _BASES)
        order = np.lexsort((place, second, first))
        first, second, place = first[order], second[order], place[order]
        # Of equal n-grams the first stays. Two that have the same 128 bits are taken for equal:
        # their documents would be compared with the words of one of them only.
        new = np.ones(len(place), np.bool_)
        new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        self._keys, self._places = first[new], place[new]
        size = max(16, _BITS_PER_KEY * len(self._keys))
        self._shift = np.uint64(64 - (size - 1).bit_length())
        self._bitmap = np.zeros(1 << (size - 1).bit_length() - 3, np.uint8)
        bits = self._keys >> self._shift
        np.bitwise_or.at(self._bitmap, bits >> np.uint64(3), _bit(bits))

    def __len__(self) -> int:
        return len(self._keys)

    def hits(self, texts: Sequence[str]) -> list[Hit | None]:
        """The first n-gram of each text that a passage has, or None."""
        hashes, counts = joined(word_hashes(texts))
        keys = splitmix64(ngram_numbers(hashes, self._n, _BASES[0]))
        bits = keys >> self._shift
        suspects = np.flatnonzero(self._bitmap[bits >> np.uint64(3)] & _bit(bits))
        left = np.searchsorted(self._keys, keys[suspects], "left")
        right = np.searchsorted(self._keys, keys[suspects], "right")
        ends = np.cumsum(counts)
        hits: list[Hit | None] = [None] * len(texts)
        known: tuple[int, list[str]] = (-1, [])
        for index in np.flatnonzero(left < right).tolist():
            document = int(np.searchsorted(ends, suspects[index], "right"))
            word = int(suspects[index] - (ends[document] - counts[document]))
            if hits[document] or word + self._n > counts[document]:
                continue
            if known[0] != document:
                known = (document, simplified_words(texts[document]))
            ngram = known[1][word : word + self._n]
            for entry in range(left[index], right[index]):
                passage = self._passage_with(entry, ngram)
                if passage:
                    hits[document] = Hit(passage, word)
                    break
        return hits

    def _passage_with(self, entry: int, ngram: list[str]) -> Passage | None:
        """The passage of an entry if its n-gram has these words."""
        place = int(self._places[entry])
        number = int(np.searchsorted(self._ends, place, "right"))
        start = place - (int(self._ends[number - 1]) if number else 0)
        passage = self._passages[number]
        words = passage.words.split(" ")[start : start + self._n]
        return passage if words == ngram else None


def _bit(bits: normal_form.U64) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (bits & np.uint64(7)).astype(np.uint8))
