"""Drops documents that repeat themselves: the rules of Gopher, as in datatrove."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Limit, Unless, is_integer, is_number
from fineshards.curation.step import Judge, Outcome, Reason, above
from fineshards.curation.words import grams
from fineshards.curation.words.tokenizers import ByWords, LanguageOfWords, WordsOf, tokenizer, words

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")


def _limits(value: object) -> tuple[tuple[int, float], ...]:
    """A rule: pairs of n and a limit, as tuples."""
    if isinstance(value, list | tuple) and all(map(_is_pair, value)):
        return tuple((n, float(limit)) for n, limit in value)
    raise ValueError("a list of pairs [n, limit], n from 1, limit from 0")


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    n, limit = pair
    return is_integer(n) and n > 0 and is_number(limit) and limit >= 0


Limits = Annotated[tuple[tuple[int, float], ...], _limits]
_NoWords = Unless(top_n_grams=((),), dup_n_grams=((),))


@dataclass(frozen=True)
class GopherRepetition(ByWords, Judge, name="gopher_repetition"):
    """Drops a document in which too much is repeated: paragraphs, lines, or n-grams of words.

    The rules, names and reasons are those of datatrove's GopherRepetitionFilter. The reason is the
    first rule that a document breaks, in the order of the parameters: `dup_para_frac`,
    `dup_para_char_frac`, `dup_line_frac`, `dup_line_char_frac`, `top_N_gram`,
    `duplicated_N_n_grams`; or `empty`. A fraction may be as large as its limit. 0 or None switches
    a rule on lines or paragraphs off.

    Args:
        dup_line_frac: The fraction of lines that an earlier line is equal to.
        dup_para_frac: The same of paragraphs, which end with an empty line.
        dup_line_char_frac: The fraction of characters that are in such lines.
        dup_para_char_frac: The same of paragraphs.
        top_n_grams: Pairs [n, limit]: the fraction of characters that are in the most frequent
            sequence of n words.
        dup_n_grams: Pairs [n, limit]: the fraction of characters that are in sequences of n words
            which an earlier one is equal to.
        language: The language of the words, by spaCy's name.
        words: What a word is. "language": by the rules of the language, as in datatrove. "space":
            what stands between white space, in any language, as for Dolma.

    Example:
        >>> batch = Batch.of_texts(["one line\\none line", "No repetition is in here."])
        >>> GopherRepetition(top_n_grams=()).apply(batch).reasons
        ['dup_line_frac', None]
    """

    dup_line_frac: Limit | None = 0.3
    dup_para_frac: Limit | None = 0.3
    dup_line_char_frac: Limit | None = 0.2
    dup_para_char_frac: Limit | None = 0.2
    top_n_grams: Limits = ((2, 0.2), (3, 0.18), (4, 0.16))
    dup_n_grams: Limits = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    language: Annotated[LanguageOfWords, _NoWords] = "en"
    words: Annotated[WordsOf, _NoWords] = "language"

    def apply(self, batch: Batch) -> Outcome:
        documents = words(batch, self._rules)
        top_lengths = [n for n, _ in self.top_n_grams]
        lengths = [n for n, _ in self.dup_n_grams]
        reasons: list[str | None] = []
        for text, one in zip(batch.strings, documents, strict=True):
            reason = self._by_lines(text)
            if reason is None and top_lengths:
                reason = self._by_top(text, grams.top_characters(one, top_lengths))
            if reason is None and lengths:
                # Characters that certainly break no rule; rounding is left to the comparison.
                ignored = [limit * len(text) - 1 for _, limit in self.dup_n_grams]
                reason = self._by_repeated(text, grams.repeated_characters(one, lengths, ignored))
            reasons.append(reason)
        return Outcome(reasons)

    def apply_again(self, document: Batch) -> Outcome:
        (text,) = document.strings
        reason = self._by_lines(text)
        if reason is None:
            strings = tokenizer(self._rules).plain(text)
            top = grams.exact_top_characters(strings, [n for n, _ in self.top_n_grams])
            repeated = grams.exact_repeated_characters(strings, [n for n, _ in self.dup_n_grams])
            reason = self._by_top(text, top) or self._by_repeated(text, repeated)
        return Outcome([reason])

    def _by_lines(self, text: str) -> str | None:
        if not text:
            return Reason("empty", "there is no text")
        for name, whole, parts in (
            ("dup_para", self.dup_para_frac, self.dup_para_char_frac),
            ("dup_line", self.dup_line_frac, self.dup_line_char_frac),
        ):
            if not whole and not parts:
                continue
            # Paragraphs are those of the text without white space at its ends, lines are not.
            units = _PARAGRAPHS.split(text.strip()) if name == "dup_para" else _LINES.split(text)
            count, characters = grams.repeated_parts(units)
            unit = "paragraphs" if name == "dup_para" else "lines"
            if whole and (ratio := count / len(units)) > whole:
                reason = f"{name}_frac"
                return above(reason, ratio, f"of the {unit} repeat another", whole, reason)
            if parts and (ratio := characters / len(text)) > parts:
                reason = f"{name}_char_frac"
                return above(
                    reason, ratio, f"of the characters are in repeated {unit}", parts, reason
                )
        return None

    def _by_top(self, text: str, counts: Sequence[int | None]) -> str | None:
        for (n, limit), characters in zip(self.top_n_grams, counts, strict=True):
            if characters is not None and (ratio := characters / len(text)) > limit:
                what = f"of the characters are in the most frequent {n} words"
                return above(f"top_{n}_gram", ratio, what, limit, "top_n_grams")
        return None

    def _by_repeated(self, text: str, counts: Sequence[int]) -> str | None:
        for (n, limit), characters in zip(self.dup_n_grams, counts, strict=True):
            if (ratio := characters / len(text)) > limit:
                what = f"of the characters are in repeated sequences of {n} words"
                return above(f"duplicated_{n}_n_grams", ratio, what, limit, "dup_n_grams")
        return None
