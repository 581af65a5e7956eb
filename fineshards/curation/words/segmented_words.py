"""The words of texts in a language without spaces, as numbers: `WordTokenizer` by a segmenter.

Nothing is remembered between texts: what a segmenter finds depends on what is around it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from fineshards.curation.words.segmenters import segmenter
from fineshards.curation.words.word_ids import Words, WordTable, is_punctuation
from fineshards.curation.words.words import LIMIT, sentence_ends


class SegmentedTokenizer:
    """Finds the words of texts in one language. Safe for threads.

    Args:
        language: One of `SEGMENTERS`.
        limit: The size at which the vocabulary is replaced.

    Raises:
        MissingLibraryError: If its segmenter is not installed.
    """

    def __init__(self, language: str, limit: int = LIMIT) -> None:
        self._segment = segmenter(language)
        self._sentence_ends = sentence_ends()
        self._limit = limit
        self._lock = threading.Lock()
        self._vocabulary = WordTable(self._sentence_ends)

    @property
    def size(self) -> int:
        """A measure of the memory."""
        return self._vocabulary.size

    def forget(self) -> None:
        """Begins a new vocabulary."""
        self._vocabulary = WordTable(self._sentence_ends)

    def words(self, texts: Sequence[str]) -> list[Words]:
        """The words of each text."""
        found = []
        with self._lock:
            for text in texts:
                if self.size > self._limit:
                    self.forget()
                vocabulary = self._vocabulary
                found.append(Words(vocabulary, vocabulary.number(self._plain(text))))
        return found

    def plain(self, text: str) -> list[str]:
        """The words of a text, from the segmenter itself."""
        with self._lock:
            return self._plain(text)

    def sentences(self, lines: Sequence[str]) -> list[int]:
        """The number of sentences in each line, as spaCy's sentencizer finds them."""
        return list(map(self.plain_sentences, lines))

    def plain_sentences(self, line: str) -> int:
        """The number of sentences of a line."""
        return len(self.split_sentences(line))

    def split_sentences(self, text: str) -> list[str]:
        """A text cut into its sentences, each with the white space before it."""
        cuts, ended, end = [0], False, 0
        for token, after in self._tokens(text):
            ends = token in self._sentence_ends
            if ended and not ends and not is_punctuation(token):
                cuts.append(end)
            ended = ends or (ended and is_punctuation(token))
            end = after
        return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]

    def _plain(self, text: str) -> list[str]:
        stripped = map(str.strip, self._segment(text))
        return [word for word in stripped if word]

    def _tokens(self, text: str) -> Iterator[tuple[str, int]]:
        """spaCy's tokens and where each ends: words, and white space but single spaces."""
        place = end = 0
        with self._lock:
            pieces = self._segment(text)
        for piece in pieces:
            begin, end = end, end + len(piece)
            if piece.isspace() or not piece:
                continue
            if begin > place:
                yield text[place:begin], begin
            yield piece, end
            place = end + (text[end : end + 1] == " ")
        if place < len(text):
            yield text[place:], len(text)
