"""Simplified text, in which small differences between copies of a document disappear.

`simplify` is datatrove's `simplify_text`, in this order: lower case; each number becomes 0;
punctuation and control characters become spaces; runs of white space become one space; canonical
decomposition, without the nonspacing marks (category Mn).

None of these steps looks across white space. (The lower case of a final sigma depends on the
letters beside it, a number may have one separator between its digits, and the order of marks
depends on the marks beside them: none of these is white space.) So the words of a simplified text
are those of its chunks between white space, one after the other. Chunks repeat, and `word_hashes`
remembers the hashes of their words.

Python's Unicode tables decide alone, of which the version is a pin. datatrove finds digits with the
library `regex`, which may know digits of a newer Unicode than Python's.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Literal
from unicodedata import category, combining, normalize, unidata_version

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from fineshards.curation.batch import Batch
from fineshards.curation.words.tokenizers import pins as spacy_pins
from fineshards.curation.words.tokenizers import tokenizer

# What a word is, when words are hashed: what stands between spaces of the simplified text; spaCy's
# tokens of the simplified text, for English; or each character but spaces.
Words = Literal["space", "spacy", "characters"]
# Whether words are hashed as the text has them, or as the simplified text has them.
Numbers = Literal["keep", "alike"]
U64 = npt.NDArray[np.uint64]

# datatrove's list. U+FF11, a digit among the brackets, is in the original, and has no effect: it
# has become 0 before.
_PUNCTUATION = (
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
)
# What is cut off the ends of a chunk at once. A digit is not: it is a word.
_ENDS = _PUNCTUATION.replace("１", "")
_TO_SPACES = str.maketrans(_PUNCTUATION, " " * len(_PUNCTUATION))
# Digits of any script, with at most one decimal separator.
_NUMBER = re.compile(r"\d+([.,،٫⎖⎗⎘]\d+)?")
_WHITE_SPACE = re.compile(r"\s+")
# The marks without a combining class that decompose into marks with one.
_TO_MARKS = str.maketrans(
    {"\u0f73": "\u0f71\u0f72", "\u0f75": "\u0f71\u0f74", "\u0f81": "\u0f71\u0f80"}
)

# Chunks that are remembered: about 100 MB. The longest: longer ones rarely repeat.
_MOST_CHUNKS = 400_000
_LONGEST_CHUNK = 40


def simplify(text: str) -> str:
    """Simplifies a text: the definition, in the plainest way.

    Example:
        >>> simplify("  Olé!  It's 3.14,\\n(or so)")
        'ole it s 0 or so'
    """
    text = _NUMBER.sub("0", text.lower()).translate(_TO_SPACES)
    text = _WHITE_SPACE.sub(" ", text.strip())
    return _without_marks(text).strip()


def simplified_words(text: str) -> list[str]:
    """The words of a simplified text: what stands between its spaces."""
    return simplify(text).split()


def word_hashes(
    texts: Sequence[str], words: Words = "space", numbers: Numbers = "alike"
) -> list[bytes]:
    """For each text, the XXH3-64 of each word in UTF-8, little-endian, joined.

    numbers: "alike": the words of the simplified text. "keep": those of the text, see `_kept`.
    """
    # `get` of a chunk that is not there makes it, see _Memo.
    get = _memo(words, numbers).__getitem__
    if words == "spacy":
        forms = map(simplify, texts) if numbers == "alike" else texts
        tokens = tokenizer("en").words(list(forms))
        return [b"".join(map(get, document.strings)) for document in tokens]
    return [b"".join(map(get, text.split())) for text in texts]


def batch_hashes(batch: Batch, words: Words = "space", numbers: Numbers = "alike") -> list[bytes]:
    """`word_hashes` of a batch's documents, shared by its steps while the texts stay the same."""
    derive = partial(word_hashes, words=words, numbers=numbers)
    return batch.derived(f"word hashes: {words} {numbers}", derive)


def joined(documents: Sequence[bytes]) -> tuple[U64, npt.NDArray[np.int64]]:
    """The hashes of the words of all documents, one after the other, and how many each has."""
    sizes = np.fromiter((len(hashes) // 8 for hashes in documents), np.int64, len(documents))
    return np.frombuffer(b"".join(documents), "<u8").astype(np.uint64, copy=False), sizes


def ngram_numbers(words: U64, n: int, base: np.uint64, start: int = 0) -> U64:
    """start * base^n + w[0] * base^(n-1) + … + w[n-1], modulo 2^64, of the n words from each on.

    What is where fewer than n words are left has no meaning.
    """
    numbers = np.full(len(words), start, np.uint64)
    count = max(0, len(words) - n + 1)
    for word in range(n if count else 0):
        numbers[:count] *= base
        numbers[:count] += words[word : word + count]
    return numbers


def pins(words: Words = "space") -> dict[str, str]:
    """Versions that decide what the words of a simplified text are."""
    return spacy_pins() if words == "spacy" else {"unicode": unidata_version}


class _Memo(dict[str, bytes]):
    """The hashes of the words of a chunk or, for spaCy's, of a word, made when first asked for.

    Results never depend on what is remembered. Threads may share it.
    """

    def __init__(self, hashes: Callable[[str], bytes]) -> None:
        super().__init__()
        self._hashes = hashes

    def __missing__(self, chunk: str) -> bytes:
        hashes = self._hashes(chunk)
        if len(chunk) <= _LONGEST_CHUNK:
            if len(self) >= _MOST_CHUNKS:
                self.clear()
            self[chunk] = hashes
        return hashes


@lru_cache(maxsize=6)
def _memo(words: Words, numbers: Numbers = "alike") -> _Memo:
    if words == "characters":
        characters = _chunk_words if numbers == "alike" else _kept
        return _Memo(lambda chunk: _hashes("".join(characters(chunk))))
    if numbers == "keep":
        return _Memo(lambda word: _hash(_kept(word)))
    return _Memo(_hash if words == "spacy" else _chunk_hashes)


def _chunk_hashes(chunk: str) -> bytes:
    """The hashes of the words of a chunk, quickly for what most chunks are."""
    word = chunk.lower().strip(_ENDS)
    if word.isascii() and word.isalpha():
        return _hash(word)
    return _hashes(_chunk_words(chunk))


def _kept(word: str) -> str:
    """A word in canonical decomposition, in lower case unless it mixes both, as identifiers do.

    Example:
        >>> [_kept(word) for word in ("Don't", "NEWS,", "pH", "x86-64")]
        ["don't", 'news,', 'pH', 'x86-64']
    """
    word = _decomposed(word)
    letters = [c for c in word if c.isalpha()]
    mixed = any(map(str.isupper, letters[1:])) and not word.isupper()
    return word if mixed else word.lower()


def _chunk_words(chunk: str) -> list[str]:
    """`simplified_words` of a text without white space."""
    return _without_marks(_NUMBER.sub("0", chunk.lower()).translate(_TO_SPACES)).split()


def _without_marks(text: str) -> str:
    """The canonical decomposition of a text without its nonspacing marks.

    Those with a combining class go first: the few others divide runs of marks, and go last.
    """
    if text.isascii():
        return text
    text = text.translate(_TO_MARKS)
    text = "".join(c for c in text if not (combining(c) and category(c) == "Mn"))
    return "".join(c for c in _decomposed(text) if category(c) != "Mn")


def _decomposed(text: str) -> str:
    """The canonical decomposition of a text.

    Marks are ordered by their combining class, which takes Python a time that is quadratic in the
    length of a run. So runs are ordered first.
    """
    if text.isascii():
        return text
    text = text.translate(_TO_MARKS)
    if any(map(combining, text)):
        runs = groupby(text, lambda c: combining(c) > 0)
        text = "".join("".join(sorted(run, key=combining) if marks else run) for marks, run in runs)
    return normalize("NFD", text)


def _hash(word: str) -> bytes:
    """XXH3-64 of a word in UTF-8, little-endian; the library's digests are big-endian."""
    return xxh3_64_digest(word.encode())[::-1]


def _hashes(words: Sequence[str]) -> bytes:
    return b"".join(map(_hash, words))
