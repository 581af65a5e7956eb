"""Words as numbers: what chunks of text consist of, and what each word is, as arrays.

Filters then work on arrays of numbers, and look at no string twice. A table only grows, until
it is replaced by a new one as a whole: see `words.py`.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.curation.punctuation import PUNCTUATION_OR_TERMINAL

# Properties of a word, as bits.
# It has a character that is not punctuation; it has a letter.
TEXTUAL, ALPHABETIC = 1, 2
# For sentences: it ends one; it is neither that nor punctuation, so that one may begin with it.
ENDING, BEGINNING = 4, 8
# It has a space inside, as special cases of some languages have.
SPACED = 16

# Words are hashed as numbers in this base, one digit per character, modulo 2^64, so that the hash
# of joined words follows from theirs. Odd, so that no digit is lost; what is equal is compared.
BASE = np.uint64(0x9E3779B97F4A7C15)
# The digit of a character is its code times this, so that every character reaches the high bits.
_DIGIT = 0xD1B54A32D192ED03


class Growing:
    """A one-dimensional array that is appended to."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._array: npt.NDArray[Any] = np.zeros(1 << 12, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, values: Sequence[int] | npt.NDArray[np.uint64]) -> None:
        """Appends values."""
        end = self._length + len(values)
        if end > len(self._array):
            larger = np.zeros(max(end, 2 * len(self._array)), self._array.dtype)
            larger[: self._length] = self._array[: self._length]
            self._array = larger
        self._array[self._length : end] = np.array(values, self._array.dtype)
        self._length = end

    def __getitem__(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values with some numbers."""
        values: npt.NDArray[Any] = self._array[numbers]
        return values


class WordTable:
    """Numbers for words and for chunks.

    sentence_ends: the words that end a sentence.
    words: the words by number. lengths: their characters. properties: their bits. hashes, powers:
    their hash, and BASE to the power of their length.
    chunks: the number of each chunk; a new one gets the next number when it is looked up, and stays
    in `new` until it is described. flags: of each chunk, see special_cases.py. spaced: whether some
    word has a space inside.
    """

    def __init__(self, sentence_ends: frozenset[str] = frozenset("!.?")) -> None:
        self._sentence_ends = sentence_ends
        self.words: list[str] = []
        self.spaced = False
        self.chunks = _Chunks()
        self._numbers: dict[str, int] = {}
        self.lengths = Growing(np.int64)
        self.properties = Growing(np.uint8)
        self.hashes = Growing(np.uint64)
        self.powers = Growing(np.uint64)
        self._chunk_starts = Growing(np.int64)
        self._chunk_counts = Growing(np.int64)
        self.flags = Growing(np.uint8)
        self._chunk_words = Growing(np.uint32)
        self._characters = 0
        self._marks: dict[tuple[str, ...], Growing] = {}

    @property
    def size(self) -> int:
        """A measure of the memory: about its bytes divided by 300."""
        return len(self.words) + len(self.chunks) + self._characters // 300

    @property
    def new(self) -> list[str]:
        """Chunks that have a number but are not described, in the order of their numbers."""
        return self.chunks.new

    def describe(self, words: Iterable[Sequence[str]], flags: Sequence[int]) -> None:
        """Describes the chunks in `new`: the words of each, and its flags (special_cases.py)."""
        described = list(words)
        numbers = self.number([word for part in described for word in part])
        counts = [len(part) for part in described]
        self._chunk_starts.extend((len(self._chunk_words) + np.cumsum([0, *counts[:-1]])).tolist())
        self._chunk_counts.extend(counts)
        self.flags.extend(flags)
        self._chunk_words.extend(numbers.tolist())
        self._characters += sum(map(len, self.new))
        self.chunks.new = []

    def number(self, words: Sequence[str]) -> npt.NDArray[np.uint32]:
        """The numbers of words, uint32, shape (n,). Words without a number get one."""
        numbers = self._numbers
        added = len(self.words)
        given = [numbers.setdefault(word, len(numbers)) for word in words]
        if len(numbers) > added:
            self._add([*islice(reversed(numbers), len(numbers) - added)][::-1])
        return np.array(given, np.uint32)

    def _add(self, words: list[str]) -> None:
        self.words += words
        self._characters += sum(map(len, words))
        lengths = list(map(len, words))
        self.lengths.extend(lengths)
        self.properties.extend([_properties(word, self._sentence_ends) for word in words])
        self.powers.extend([_power(length) for length in lengths])
        self.hashes.extend(hashes_of(words))
        self.spaced = self.spaced or any(" " in word for word in words)
        for marked, marks in self._marks.items():
            marks.extend([_mark(marked, word) for word in words])

    def expand(
        self, chunks: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The words of chunks, and where those of each chunk end, shape (n,)."""
        counts = self._chunk_counts[chunks]
        ends = np.cumsum(counts)
        skipped = self._chunk_starts[chunks] - ends + counts
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total) + np.repeat(skipped, counts)
        words: npt.NDArray[np.uint32] = self._chunk_words[places]
        return words, ends

    def marks(self, marked: tuple[str, ...]) -> Growing:
        """For each word, its place in `marked`, counted from 1; 0 if it is not there."""
        if marked not in self._marks:
            marks = self._marks[marked] = Growing(np.uint16)
            marks.extend([_mark(marked, word) for word in self.words])
        return self._marks[marked]


class Words(NamedTuple):
    """The words of a document, as numbers in a vocabulary: uint32, shape (n,)."""

    vocabulary: WordTable
    numbers: npt.NDArray[np.uint32]

    @property
    def strings(self) -> list[str]:
        """The words themselves."""
        words = self.vocabulary.words
        return [words[number] for number in self.numbers.tolist()]


class _Chunks(dict[str, int]):
    """Numbers of chunks; looking up an unknown one gives it the next."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, chunk: str) -> int:
        self[chunk] = number = len(self)
        self.new.append(chunk)
        return number


def _properties(word: str, sentence_ends: frozenset[str]) -> int:
    bits = 0
    if not PUNCTUATION_OR_TERMINAL.issuperset(word):
        bits |= TEXTUAL
    if word.isalpha() or any(map(str.isalpha, word)):
        bits |= ALPHABETIC
    if word in sentence_ends:
        bits |= ENDING
    elif not all(map(_is_p, word)):  # spaCy calls no other word punctuation
        bits |= BEGINNING
    if " " in word:
        bits |= SPACED
    return bits


@lru_cache(maxsize=1 << 12)
def _is_p(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def _mark(marked: tuple[str, ...], word: str) -> int:
    return marked.index(word) + 1 if word in marked else 0


@lru_cache(maxsize=1 << 10)
def _power(length: int) -> int:
    return pow(int(BASE), length, 1 << 64)


def hashes_of(words: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The hashes of words, or of any texts that are not empty."""
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), "<u4")
    begins = np.cumsum([0, *map(len, words)])
    places = np.arange(len(codes)) - np.repeat(begins[:-1], np.diff(begins))
    powers = np.cumprod(np.append(np.uint64(1), np.full(places.max(initial=0), BASE)))
    # The last character is the highest digit, as in joined words.
    digits = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(_DIGIT) * powers[places]
    return np.add.reduceat(digits, begins[:-1])
