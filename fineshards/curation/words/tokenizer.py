"""What finds words and sentences, by spaCy's rules or by a segmenter."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from fineshards.curation.words.word_ids import Words, WordTable
from fineshards.extras import naming_the_extra

# The size at which a vocabulary is replaced by a new one: about 300 MB, or 50 MB of English text.
# Steps may still hold the old one for the batch that they work on.
LIMIT = 1_000_000
# Characters that are looked up before new words are described, and the size is compared.
_GROUP = 1 << 20


class Tokenizer:
    """Finds the words and sentences of texts in one language. Safe for threads.

    limit: the size at which the vocabulary is replaced.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._sentence_ends = _sentence_ends()
        self.forget()

    @property
    def size(self) -> int:
        """A measure of the memory, as of `WordTable`."""
        return self._vocabulary.size

    def forget(self) -> None:
        """Begins a new vocabulary."""
        self._vocabulary = WordTable(self._sentence_ends)

    def words(self, texts: Sequence[str]) -> list[Words]:
        """The words of each text."""
        found: list[Words] = []
        with self._lock:
            for group in groups(texts):
                if self.size > self._limit:
                    self.forget()
                found += self._of_group(group)
        return found

    def plain(self, text: str) -> list[str]:
        """The words of a text, from the library itself."""
        with self._lock:
            return self._plain(text)

    def sentences(self, lines: Sequence[str]) -> list[int]:
        """The number of sentences that spaCy's sentencizer finds in each line; 1 if it is empty."""
        return list(map(self.plain_sentences, lines))

    def plain_sentences(self, line: str) -> int:
        """The number of sentences of a line, from spaCy's own rules on its tokens, one by one."""
        return len(self.split_sentences(line))

    def split_sentences(self, text: str) -> list[str]:
        """A text cut into its sentences, each with the white space before it."""
        raise NotImplementedError

    def _of_group(self, texts: Sequence[str]) -> list[Words]:
        vocabulary = self._vocabulary
        return [Words(vocabulary, vocabulary.number(self._plain(text))) for text in texts]

    def _plain(self, text: str) -> list[str]:
        stripped = map(str.strip, self._tokens(text))
        return [word for word in stripped if word]

    def _tokens(self, text: str) -> list[str]:
        raise NotImplementedError


def groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts, in groups of about _GROUP characters."""
    start, characters = 0, 0
    for end, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= _GROUP:
            yield texts[start:end]
            start, characters = end, 0
    if start < len(texts):
        yield texts[start:]


@naming_the_extra()
def _sentence_ends() -> frozenset[str]:
    """The words that end a sentence, of all scripts."""
    from spacy.pipeline.sentencizer import Sentencizer

    return frozenset(Sentencizer.default_punct_chars)
