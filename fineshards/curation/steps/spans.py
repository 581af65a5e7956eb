"""Lines, paragraphs and runs of sentences that an earlier document has, or the same one before.

A span's key is the XXH3-128 of the hashes of the words of its simplified text (see `simplified`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from xxhash import xxh3_128_digest

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, Positive
from fineshards.curation.step import KeyedSpans, Keys
from fineshards.curation.steps.exact_duplicates import as_keys
from fineshards.curation.words.normal_form import pins, word_hashes
from fineshards.curation.words.tokenizers import sentence_tokenizer

# Between paragraphs: lines with nothing but white space. The line feed before them belongs to it.
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_LINE_FEED = re.compile(r"\n")


@dataclass(frozen=True)
class _Separated(KeyedSpans):
    """What lines and paragraphs have in common."""

    SEPARATOR: ClassVar[re.Pattern[str]]

    min_chars: Count = 20
    min_doc_words: Count = 50

    def pins(self) -> dict[str, str]:
        return pins()

    def keys(self, batch: Batch) -> Keys:
        return _keys(batch, self._keyed)

    def _keyed(self, text: str) -> Iterator[tuple[int, bytes]]:
        """The number of each span that is long enough, and the hashes of its words."""
        spans = self.SEPARATOR.split(text)
        numbers = [
            number for number, span in enumerate(spans) if len(span.strip()) >= self.min_chars
        ]
        return zip(numbers, word_hashes([spans[number] for number in numbers]), strict=True)

    def cut(self, text: str, spans: Sequence[int]) -> tuple[str | None, str]:
        """See KeyedSpans. What is left keeps the separator that was before it."""
        cut, parts = set(spans), self.SEPARATOR.split(text)
        before = ["", *self.SEPARATOR.findall(text)]
        left = [number for number in range(len(parts)) if number not in cut]
        rest = "".join(before[number] * (number > left[0]) + parts[number] for number in left)
        if not rest.strip():
            return None, "nothing_left"
        if len(rest.split()) < self.min_doc_words:
            return None, "too_few_words"
        return rest, ""

    def removed(self, text: str, spans: Sequence[int]) -> list[str]:
        parts = self.SEPARATOR.split(text)
        return [parts[number].strip() for number in spans]


@dataclass(frozen=True)
class Lines(_Separated, name="lines"):
    """Cuts lines that an earlier document has, or the same one before.

    Lines are compared by their simplified words: case, punctuation, diacritics, numbers and white
    space make no difference. Lines end at line feeds.

    Args:
        min_chars: Shorter lines are left alone. White space around them does not count.
        min_doc_words: A document of which something was cut is dropped if it has fewer words left.
            Words are what stands between white space. 0: it is dropped only if nothing is left.

    Example:
        >>> step = Lines(min_doc_words=0)
        >>> step.cut("The menu of this site\\nWhat is new\\nAll rights reserved", [0, 2])
        ('What is new', '')
    """

    SEPARATOR: ClassVar[re.Pattern[str]] = _LINE_FEED


@dataclass(frozen=True)
class Paragraphs(_Separated, name="paragraphs"):
    """Cuts paragraphs that an earlier document has, or the same one before.

    Paragraphs are separated by empty lines, and are compared as lines are.

    Args:
        min_chars: Shorter paragraphs are left alone. White space around them does not count.
        min_doc_words: A document of which something was cut is dropped if it has fewer words left.
            Words are what stands between white space. 0: it is dropped only if nothing is left.

    Example:
        >>> step = Paragraphs(min_doc_words=0)
        >>> step.cut("We use cookies.\\nAccept?\\n\\nThe story.\\n\\n\\nThe end.", [0])
        ('The story.\\n\\n\\nThe end.', '')
    """

    SEPARATOR: ClassVar[re.Pattern[str]] = _EMPTY_LINES


@dataclass(frozen=True)
class Sentences(KeyedSpans, name="sentences"):
    """Cuts runs of sentences that an earlier document has, or the same one before, as C4 does.

    Every run of `n_sentences` has a key, so a repeated passage is cut whole. Sentences are those of
    spaCy's sentencizer for English, which is slow, and runs are compared by their simplified words.
    The parameters and their defaults are datatrove's.

    Args:
        n_sentences: Sentences per run. A document with fewer is left alone.
        split_sentences: False: lines instead of sentences.
        min_doc_words: A document of which something was cut is dropped if it has fewer words left.
            Words are spaCy's. 0: no limit.
        min_num_sentences: The same for sentences.

    Example:
        >>> step = Sentences(min_doc_words=0, min_num_sentences=0)
        >>> step.cut("One. Two! Three? Four. Five.", [1])
        ('One. Five.', '')
    """

    n_sentences: Positive = 3
    split_sentences: bool = True
    min_doc_words: Count = 50
    min_num_sentences: Count = 3

    def pins(self) -> dict[str, str]:
        return pins("spacy")

    def keys(self, batch: Batch) -> Keys:
        return _keys(batch, self._keyed)

    def _keyed(self, text: str) -> Iterator[tuple[int, bytes]]:
        """The number of the first sentence of each run, and the hashes of the words of the run."""
        words = word_hashes(self._parts(text))
        for first in range(len(words) - self.n_sentences + 1):
            yield first, b"".join(words[first : first + self.n_sentences])

    def _parts(self, text: str) -> list[str]:
        """The sentences or lines of a text, which together are the text."""
        return sentences(text) if self.split_sentences else text.splitlines(keepends=True)

    def removed(self, text: str, spans: Sequence[int]) -> list[str]:
        parts, cut = self._parts(text), self._numbers(spans)
        return [part.strip() for number, part in enumerate(parts) if number in cut]

    def _numbers(self, spans: Sequence[int]) -> set[int]:
        """The numbers of the sentences in some runs."""
        return {first + place for first in spans for place in range(self.n_sentences)}

    def cut(self, text: str, spans: Sequence[int]) -> tuple[str | None, str]:
        parts, cut = enumerate(self._parts(text)), self._numbers(spans)
        rest = "".join(part for number, part in parts if number not in cut).lstrip()
        if not rest.strip():
            return None, "nothing_left"
        if rest != text:
            words = sentence_tokenizer("en").words([rest])[0].numbers if self.min_doc_words else ()
            if len(words) < self.min_doc_words:
                return None, "too_few_words"
            if self.min_num_sentences and len(sentences(rest)) < self.min_num_sentences:
                return None, "too_few_sentences"
        return rest, ""


def sentences(text: str) -> list[str]:
    """The sentences of spaCy's sentencizer, which together are the text.

    White space between two of them belongs to the second, and at the end to the last one.

    Example:
        >>> sentences("One. Two!  Three ")
        ['One.', ' Two!', '  Three ']
    """
    parts = sentence_tokenizer("en").split_sentences(text)
    while len(parts) > 1 and not parts[-1].strip():
        last = parts.pop()
        parts[-1] += last
    return parts


def _keys(batch: Batch, keyed: Callable[[str], Iterator[tuple[int, bytes]]]) -> Keys:
    """The keys of the spans of all documents; spans without words have none."""
    owners: list[int] = []
    spans: list[int] = []
    digests: list[bytes] = []
    for owner, text in enumerate(batch.strings):
        for span, words in keyed(text):
            if words:
                owners.append(owner)
                spans.append(span)
                digests.append(xxh3_128_digest(words))
    return Keys(as_keys(digests), np.array(owners, np.int64), np.array(spans, np.uint32))
