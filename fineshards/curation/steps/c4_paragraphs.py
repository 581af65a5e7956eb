"""Drops documents without long paragraphs, as mC4 does, in datatrove's version."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, Positive
from fineshards.curation.step import Judge, Outcome


@dataclass(frozen=True)
class C4Paragraphs(Judge, name="c4_paragraphs"):
    """Drops a document with too few long lines.

    The rule, names and reason are those of datatrove's C4ParagraphFilter; there they are constants.
    The reason is `< 3 paragraphs`, with `min_paragraphs`.

    Args:
        min_paragraphs: The least number of long lines.
        min_paragraph_len: The characters of the shortest long line.

    Example:
        >>> batch = Batch.of_texts(["A line.\\nAnd another.", "Only one line."])
        >>> C4Paragraphs(min_paragraphs=2, min_paragraph_len=5).apply(batch).reasons
        [None, '< 2 paragraphs']
    """

    min_paragraphs: Positive = 3
    min_paragraph_len: Count = 200

    def apply(self, batch: Batch) -> Outcome:
        reason = f"< {self.min_paragraphs} paragraphs"
        return Outcome([None if self._has_enough(text) else reason for text in batch.strings])

    def _has_enough(self, text: str) -> bool:
        longest = heapq.nlargest(self.min_paragraphs, map(len, text.split("\n")))
        return len(longest) == self.min_paragraphs and longest[-1] >= self.min_paragraph_len
