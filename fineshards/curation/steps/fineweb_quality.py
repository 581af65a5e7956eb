"""Drops documents that are lists rather than prose: FineWeb's own rules, as in datatrove."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, Limit, Unless
from fineshards.curation.punctuation import TERMINAL_PUNCTUATION
from fineshards.curation.step import Judge, Outcome, Reason, above, below
from fineshards.curation.words.grams import repeated_parts
from fineshards.curation.words.tokenizers import WordLanguage, pins, tokenizer, words

_SHORT_LINE = 30
_Unpunctuated = Unless(line_punct_thr=(None, 0))


@dataclass(frozen=True)
class FineWebQuality(Judge, name="fineweb_quality"):
    """Drops a document with few sentences ends, many short lines, repeated lines or many lines.

    The rules, names and reasons are those of datatrove's FineWebQualityFilter. The reason is the
    first rule that a document breaks: `empty`, `line_punct_ratio`, `short_line_ratio`,
    `char_dup_ratio`, `list_ratio`. Lines of white space do not count. None switches a rule off.

    Where datatrove divides by zero: a document without words is dropped as `empty`.

    Args:
        line_punct_thr: The least fraction of lines that end with one of `stop_chars`.
        line_punct_exclude_zero: Whether a document with no such line is kept.
        stop_chars: What such lines end with. None: the ends of sentences in many scripts.
        short_line_thr: The largest fraction of short lines.
        short_line_length: The characters of the longest short line.
        char_duplicates_ratio: The largest fraction of characters in lines that an earlier line is
            equal to. FineWeb was made with 0.01, FineWeb-2 with 0.1.
        new_line_ratio: The most line breaks per word.
        language: The language of the words, by spaCy's name.

    Example:
        >>> batch = Batch.of_texts(["Milk\\nBread\\nEggs", "Lines that end as this one does."])
        >>> FineWebQuality().apply(batch).reasons
        ['line_punct_ratio', None]
    """

    line_punct_thr: Limit | None = 0.12
    line_punct_exclude_zero: Annotated[bool, _Unpunctuated] = False
    stop_chars: Annotated[tuple[str, ...] | None, _Unpunctuated] = None
    short_line_thr: Limit | None = 0.67
    short_line_length: Annotated[Count, Unless(short_line_thr=(None,))] = _SHORT_LINE
    char_duplicates_ratio: Limit | None = 0.01
    new_line_ratio: Limit | None = 0.3
    language: WordLanguage = "en"

    def pins(self) -> dict[str, str]:
        return pins(self.language)

    def apply(self, batch: Batch) -> Outcome:
        counts = [len(document.numbers) for document in words(batch, self.language)]
        documents = zip(batch.strings, counts, strict=True)
        return Outcome([self._judge(text, count) for text, count in documents])

    def apply_again(self, document: Batch) -> Outcome:
        (text,) = document.strings
        return Outcome([self._judge(text, len(tokenizer(self.language).plain(text)))])

    def _judge(self, text: str, words: int) -> str | None:
        lines = nonempty_lines(text)
        if not lines or not words:
            return Reason("empty", "there are no words")
        if self.line_punct_thr is not None:
            ratio = line_punct_ratio(lines, self.stop_chars)
            if ratio < self.line_punct_thr and not (ratio == 0 and self.line_punct_exclude_zero):
                what = "of the lines end with one of stop_chars"
                return below("line_punct_ratio", ratio, what, self.line_punct_thr, "line_punct_thr")
        most, longest = self.short_line_thr, self.short_line_length
        if most is not None and (ratio := short_line_ratio(lines, longest)) > most:
            what = f"of the lines have at most {longest} characters"
            return above("short_line_ratio", ratio, what, most, "short_line_thr")
        most = self.char_duplicates_ratio
        if most is not None and (ratio := char_dup_ratio(text, lines)) > most:
            what = "of the characters are in repeated lines"
            return above("char_dup_ratio", ratio, what, most, "char_duplicates_ratio")
        ratio = text.count("\n") / words
        if self.new_line_ratio is not None and ratio > self.new_line_ratio:
            what = "line breaks per word"
            return above("list_ratio", ratio, what, self.new_line_ratio, "new_line_ratio")
        return None


def nonempty_lines(text: str) -> list[str]:
    """The lines of a text that are more than white space."""
    return [line for line in text.split("\n") if line and not line.isspace()]


def line_punct_ratio(lines: list[str], stop_chars: tuple[str, ...] | None = None) -> float:
    """The fraction of lines that end with one of `stop_chars`; None: the ends of sentences."""
    if stop_chars is None:
        return sum(line[-1] in TERMINAL_PUNCTUATION for line in lines) / len(lines)
    return sum(line.endswith(stop_chars) for line in lines) / len(lines)


def short_line_ratio(lines: list[str], short_line_length: int = _SHORT_LINE) -> float:
    """The fraction of lines of so many characters at most."""
    return sum(len(line) <= short_line_length for line in lines) / len(lines)


def char_dup_ratio(text: str, lines: list[str]) -> float:
    """The fraction of characters in lines that an earlier line is equal to."""
    _, characters = repeated_parts(lines)
    return characters / (len(text) - text.count("\n"))


# The ratios of a text, with the defaults of the step, from it and its lines, of which it has some.
RATIOS: dict[str, Callable[[str, list[str]], float]] = {
    "line_punct_ratio": lambda _, lines: line_punct_ratio(lines),
    "short_line_ratio": lambda _, lines: short_line_ratio(lines),
    "char_dup_ratio": char_dup_ratio,
}
