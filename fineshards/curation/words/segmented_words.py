"""The words of texts in a language without spaces, by a segmenter.

Nothing is remembered between texts: what a segmenter finds depends on what is around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fineshards.curation.words.segmenters import segmenter
from fineshards.curation.words.tokenizer import Tokenizer
from fineshards.curation.words.word_ids import is_punctuation


class SegmentedTokenizer(Tokenizer):
    """Finds the words of texts in one of `SEGMENTERS`; raises MissingLibraryError without it."""

    def __init__(self, language: str) -> None:
        self._segment = segmenter(language)
        super().__init__()

    def split_sentences(self, text: str) -> list[str]:
        """A text cut into its sentences, each with the white space before it."""
        cuts, ended, end = [0], False, 0
        for token, after in self._spaced(text):
            ends = token in self._sentence_ends
            if ended and not ends and not is_punctuation(token):
                cuts.append(end)
            ended = ends or (ended and is_punctuation(token))
            end = after
        return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]

    def _tokens(self, text: str) -> list[str]:
        return self._segment(text)

    def _spaced(self, text: str) -> Iterator[tuple[str, int]]:
        """spaCy's tokens and where each ends: words, and white space but single spaces."""
        place = end = 0
        with self._lock:
            pieces = self._tokens(text)
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
