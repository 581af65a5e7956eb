"""Drops documents that are lists rather than prose: FineWeb's own rules, as in datatrove."""

from __future__ import annotations

from dataclasses import dataclass

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, Limit
from fineshards.curation.punctuation import TERMINAL_PUNCTUATION
from fineshards.curation.step import Judge, Outcome
from fineshards.curation.words.grams import repeated_parts
from fineshards.curation.words.tokenizers import WordLanguage, pins, tokenizer, words


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
    line_punct_exclude_zero: bool = False
    stop_chars: tuple[str, ...] | None = None
    short_line_thr: Limit | None = 0.67
    short_line_length: Count = 30
    char_duplicates_ratio: Limit | None = 0.01
    new_line_ratio: Limit | None = 0.3
    language: WordLanguage = "en"

    def pins(self) -> dict[str, str]:
        return pins(self.language)

    def apply(self, batch: Batch) -> Outcome:
        counts = [len(found.numbers) for found in words(batch, self.language)]
        documents = zip(batch.strings, counts, strict=True)
        return Outcome([self._judge(text, count) for text, count in documents])

    def apply_again(self, document: Batch) -> Outcome:
        (text,) = document.strings
        return Outcome([self._judge(text, len(tokenizer(self.language).plain(text)))])

    def _judge(self, text: str, words: int) -> str | None:
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if not lines or not words:
            return "empty"
        if self.line_punct_thr is not None:
            ratio = self._ended(lines) / len(lines)
            if ratio < self.line_punct_thr and not (ratio == 0 and self.line_punct_exclude_zero):
                return "line_punct_ratio"
        if self.short_line_thr is not None:
            short = sum(len(line) <= self.short_line_length for line in lines)
            if short / len(lines) > self.short_line_thr:
                return "short_line_ratio"
        breaks = text.count("\n")
        if self.char_duplicates_ratio is not None:
            _, characters = repeated_parts(lines)
            if characters / (len(text) - breaks) > self.char_duplicates_ratio:
                return "char_dup_ratio"
        if self.new_line_ratio is not None and breaks / words > self.new_line_ratio:
            return "list_ratio"
        return None

    def _ended(self, lines: list[str]) -> int:
        """How many lines end with one of `stop_chars`."""
        if self.stop_chars is None:
            return sum(line[-1] in TERMINAL_PUNCTUATION for line in lines)
        return sum(line.endswith(self.stop_chars) for line in lines)
