"""Drops documents whose words are not those of prose: the rules of Gopher, as in datatrove."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, Limit, Unless
from fineshards.curation.punctuation import PUNCTUATION_OR_TERMINAL
from fineshards.curation.step import Judge, Outcome, Reason, above, below
from fineshards.curation.words.tokenizers import ByWords, LanguageOfWords, WordsOf, tokenizer, words
from fineshards.curation.words.word_ids import ALPHABETIC, TEXTUAL, Words

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


class _WordCounts(NamedTuple):
    """Counts of words. Textual words have a character that is not punctuation."""

    words: int
    textual: int
    textual_characters: int
    alphabetic: int
    stop_words: int


_Measure = Callable[[str, _WordCounts], float | None]


@dataclass(frozen=True)
class GopherQuality(ByWords, Judge, name="gopher_quality"):
    """Drops a document by its words: their number, length and symbols, and the stop words.

    The rules, names and reasons are those of datatrove's GopherQualityFilter. The reason is the
    first rule that a document breaks, in the order of the parameters: `gopher_short_doc`,
    `gopher_long_doc`, `gopher_below_avg_threshold`, `gopher_above_avg_threshold`,
    `gopher_too_many_hashes`, `gopher_too_many_ellipsis`, `gopher_too_many_bullets`,
    `gopher_too_many_end_ellipsis`, `gopher_below_alpha_threshold`, `gopher_enough_stop_words` (too
    few of them). 0 or None switches a rule off.

    Where datatrove divides by zero: a document without words is dropped as `gopher_short_doc`,
    whatever the parameters are. If all words are punctuation, they have no average length, and the
    two rules on it do not apply.

    Args:
        min_doc_words: The least number of words that are not only punctuation.
        max_doc_words: The largest number of such words.
        min_avg_word_length: The least average length of such words, in characters.
        max_avg_word_length: The largest average length.
        max_symbol_word_ratio: The most `#` per word, and the most ellipses per word.
        max_bullet_lines_ratio: The largest fraction of lines that begin with a bullet.
        max_ellipsis_lines_ratio: The largest fraction of lines that end with an ellipsis.
        max_non_alpha_words_ratio: The least fraction of words with a letter. datatrove's name.
        min_stop_words: The least number of different stop words.
        stop_words: The stop words. None: eight English ones. Upper case counts as another word.
        language: The language of the words, by spaCy's name.
        words: What a word is. "language": by the rules of the language, as in datatrove. "space":
            what stands between white space, in any language, as for Dolma.

    Example:
        >>> batch = Batch.of_texts(["This is too short.", "The old cat sat with me by the door."])
        >>> GopherQuality(min_doc_words=6).apply(batch).reasons
        ['gopher_short_doc', None]
    """

    min_doc_words: Count | None = 50
    max_doc_words: Count | None = 100_000
    min_avg_word_length: Limit | None = 3
    max_avg_word_length: Limit | None = 10
    max_symbol_word_ratio: Limit | None = 0.1
    max_bullet_lines_ratio: Limit | None = 0.9
    max_ellipsis_lines_ratio: Limit | None = 0.3
    max_non_alpha_words_ratio: Limit | None = 0.8
    min_stop_words: Count | None = 2
    stop_words: Annotated[tuple[str, ...] | None, Unless(min_stop_words=(None, 0))] = None
    language: LanguageOfWords = "en"
    words: WordsOf = "language"

    def apply(self, batch: Batch) -> Outcome:
        stop_words = self._stop_words()
        documents = zip(batch.strings, words(batch, self._rules), strict=True)
        return Outcome([self._judge(text, _count(one, stop_words)) for text, one in documents])

    def apply_again(self, document: Batch) -> Outcome:
        (text,) = document.strings
        counts = _count_again(tokenizer(self._rules).plain(text), self._stop_words())
        return Outcome([self._judge(text, counts)])

    def _stop_words(self) -> tuple[str, ...]:
        return STOP_WORDS if self.stop_words is None else self.stop_words

    def _judge(self, text: str, counts: _WordCounts) -> str | None:
        for parameter, compare, reason, measure, what in _RULES:
            if bound := getattr(self, parameter):
                value = measure(text, counts)
                if value is not None and (value < bound if compare is below else value > bound):
                    return compare(reason, value, what, bound, parameter)
            if not counts.words:
                return Reason("gopher_short_doc", "there are no words")
        return None


def _count(document: Words, stop_words: tuple[str, ...]) -> _WordCounts:
    vocabulary, numbers = document
    properties = vocabulary.properties[numbers]
    textual = (properties & TEXTUAL) != 0
    # Which of the stop words are there; place 0 stands for all other words.
    there = np.zeros(len(stop_words) + 1, np.bool_)
    there[vocabulary.marks(stop_words)[numbers]] = True
    return _WordCounts(
        words=len(numbers),
        textual=int(np.count_nonzero(textual)),
        textual_characters=int(vocabulary.lengths[numbers[textual]].sum()),
        alphabetic=int(np.count_nonzero(properties & ALPHABETIC)),
        stop_words=int(np.count_nonzero(there[1:])),
    )


def _count_again(document: Sequence[str], stop_words: tuple[str, ...]) -> _WordCounts:
    textual = [word for word in document if any(x not in PUNCTUATION_OR_TERMINAL for x in word)]
    return _WordCounts(
        words=len(document),
        textual=len(textual),
        textual_characters=sum(map(len, textual)),
        alphabetic=sum(any(x.isalpha() for x in word) for word in document),
        stop_words=len(set(stop_words) & set(document)),
    )


def _share_of_lines(
    marks: tuple[str, ...], has: Callable[[str, tuple[str, ...]], bool]
) -> _Measure:
    """The share of the lines that have one of some marks at their beginning or end."""

    def share(text: str, _: _WordCounts) -> float:
        lines = text.splitlines() if any(mark in text for mark in marks) else [""]
        return sum(has(line, marks) for line in lines) / len(lines)

    return share


# What the step compares by words, from a text and its words, of which it has some.
WORD_RATIOS: dict[str, _Measure] = {
    "textual_words": lambda _, counts: counts.textual,
    "mean_word_length": lambda _, counts: (
        counts.textual_characters / counts.textual if counts.textual else None
    ),
    "hash_ratio": lambda text, counts: text.count("#") / counts.words,
    "ellipsis_ratio": lambda text, counts: (text.count("...") + text.count("…")) / counts.words,
    "alpha_ratio": lambda _, counts: counts.alphabetic / counts.words,
    "stop_words": lambda _, counts: counts.stop_words,
}
_WORDS, _LENGTH, _HASHES, _ELLIPSES, _ALPHA, _STOP_WORDS = WORD_RATIOS.values()
_BULLETS = _share_of_lines(("•", "-"), lambda line, marks: line.lstrip().startswith(marks))
_DOTS = _share_of_lines(("...", "…"), lambda line, marks: line.rstrip().endswith(marks))
_BEGIN, _END = "of the lines begin with a bullet", "of the lines end with an ellipsis"
_LETTER = "of the words have a letter"
# In their order: the parameter, the side, the reason, what is measured, and its words.
_RULES: tuple[tuple[str, Callable[..., Reason], str, _Measure, str], ...] = (
    ("min_doc_words", below, "gopher_short_doc", _WORDS, "words"),
    ("max_doc_words", above, "gopher_long_doc", _WORDS, "words"),
    ("min_avg_word_length", below, "gopher_below_avg_threshold", _LENGTH, "characters per word"),
    ("max_avg_word_length", above, "gopher_above_avg_threshold", _LENGTH, "characters per word"),
    ("max_symbol_word_ratio", above, "gopher_too_many_hashes", _HASHES, "# per word"),
    ("max_symbol_word_ratio", above, "gopher_too_many_ellipsis", _ELLIPSES, "ellipses per word"),
    ("max_bullet_lines_ratio", above, "gopher_too_many_bullets", _BULLETS, _BEGIN),
    ("max_ellipsis_lines_ratio", above, "gopher_too_many_end_ellipsis", _DOTS, _END),
    ("max_non_alpha_words_ratio", below, "gopher_below_alpha_threshold", _ALPHA, _LETTER),
    ("min_stop_words", below, "gopher_enough_stop_words", _STOP_WORDS, "different stop words"),
)


def word_ratios(name: str, batch: Batch, language: str, again: bool = False) -> list[float | None]:
    """One of the ratios of each document, with the step's stop words; None where it has no words.

    again: whether in the plainest way.
    """
    counts = (
        [_count_again(tokenizer(language).plain(text), STOP_WORDS) for text in batch.strings]
        if again
        else [_count(document, STOP_WORDS) for document in words(batch, language)]
    )
    return [
        WORD_RATIOS[name](text, count) if count.words else None
        for text, count in zip(batch.strings, counts, strict=True)
    ]
