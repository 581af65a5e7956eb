"""What C4 keeps of documents, in datatrove's version: lines of prose."""

import re
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, ClassVar

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Unless, whole
from fineshards.curation.step import Judge, Outcome, Reason, below
from fineshards.curation.words.tokenizers import SentenceLanguage, pins, sentence_tokenizer

# -1 switches a rule off.
_CountOrOff = Annotated[int, whole(-1)]
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_ELLIPSIS = "..."
_POLICIES = (
    *("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies"),
    "use cookies",
)


@dataclass(frozen=True)
class C4Quality(Judge, name="c4_quality"):
    """Drops lines of a document that are not prose, and documents with few sentences left.

    The rules, names and reasons are those of datatrove's C4QualityFilter: `lorem_ipsum`,
    `curly_bracket`, `too_few_sentences`. It rewrites the text: lines lose white space at their ends
    and citations, and are joined by line breaks.

    An empty text has no sentences; datatrove drops it so too.

    Args:
        remove_citations: Remove `[1]`, `[edit]` and `[citation needed]`.
        filter_no_terminal_punct: Drop lines that do not end with one of `. ? ! " '`, or that end
            with `...`. FineWeb does not.
        min_num_sentences: The least number of sentences of the lines that are left. -1: any.
        min_words_per_line: Drop lines with fewer words, counted by white space. -1: none.
        max_word_length: Drop lines with a longer word, in characters. -1: none.
        filter_lorem_ipsum: Drop the document if a line has `lorem ipsum`.
        filter_javascript: Drop lines with `javascript`.
        filter_curly_bracket: Drop the document if a line has `{`.
        filter_policy: Drop lines about cookies, terms of use and privacy.
        language: The language of the sentences, by spaCy's name.

    Example:
        >>> text = "A line to keep [1].\\nNot this one\\n It goes on... \\nAnd the end is here!"
        >>> C4Quality(min_num_sentences=2).apply(Batch.of_texts([text])).texts
        ['A line to keep .\\nAnd the end is here!']
    """

    REWRITES: ClassVar[bool] = True

    remove_citations: bool = True
    filter_no_terminal_punct: bool = True
    min_num_sentences: _CountOrOff = 5
    min_words_per_line: _CountOrOff = 3
    max_word_length: _CountOrOff = 1000
    filter_lorem_ipsum: bool = True
    filter_javascript: bool = True
    filter_curly_bracket: bool = True
    filter_policy: bool = True
    language: Annotated[SentenceLanguage, Unless(min_num_sentences=(-1, 0))] = "en"

    def pins(self) -> dict[str, str]:
        return pins(self.language)

    def apply(self, batch: Batch) -> Outcome:
        reasons: list[str | None] = []
        texts: list[str] = []
        # Lines of documents that only have enough sentences if some line has several.
        few: list[tuple[int, list[str]]] = []
        for index, text in enumerate(batch.strings):
            judged = self._lines(text)
            reasons.append(judged if isinstance(judged, str) else None)
            texts.append(text if isinstance(judged, str) else "\n".join(judged).strip())
            if not isinstance(judged, str) and len(judged) < self.min_num_sentences:
                few.append((index, judged))
        left = [line for _, lines in few for line in lines]
        counts = iter(sentence_tokenizer(self.language).sentences(left))
        for index, lines in few:
            if sum(islice(counts, len(lines))) < self.min_num_sentences:
                reasons[index] = "too_few_sentences"
        return Outcome(reasons, texts)

    def apply_again(self, document: Batch) -> Outcome:
        (text,) = document.strings
        judged = self._lines(text)
        if isinstance(judged, str):
            return Outcome([judged], [text])
        split = sentence_tokenizer(self.language).split_sentences
        sentences = sum(len(split(line)) for line in judged)
        least, reason = self.min_num_sentences, None
        if sentences < least:
            what = "sentences are left"
            reason = below("too_few_sentences", sentences, what, least, "min_num_sentences")
        return Outcome([reason], ["\n".join(judged).strip()])

    def _lines(self, text: str) -> list[str] | str:
        """The lines to keep, or why the document is dropped."""
        lines = []
        for line in map(str.strip, text.splitlines()):
            words = line.split()
            longest = self.max_word_length
            # A short line has no long word.
            if -1 < longest < len(line) and max(map(len, words)) > longest:
                continue
            if self.remove_citations:
                line = _CITATION.sub("", line)
            if self.filter_no_terminal_punct and (
                not line.endswith(_ENDS) or line.endswith(_ELLIPSIS)
            ):
                continue
            if len(words) < self.min_words_per_line:
                continue
            lowered = line.lower()
            if self.filter_lorem_ipsum and "lorem ipsum" in lowered:
                return Reason("lorem_ipsum", "a line has lorem ipsum: filter_lorem_ipsum")
            if self.filter_javascript and "javascript" in lowered:
                continue
            if self.filter_curly_bracket and "{" in line:
                return Reason("curly_bracket", "a line has {: filter_curly_bracket")
            if self.filter_policy and any(phrase in lowered for phrase in _POLICIES):
                continue
            lines.append(line)
        return lines
