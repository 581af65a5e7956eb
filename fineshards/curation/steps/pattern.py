"""Drops documents in which a regular expression matches: datatrove's RegexFilter."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import check
from fineshards.curation.step import Judge, Outcome


@dataclass(frozen=True)
class Regex(Judge, name="regex"):
    """Drops a document if a regular expression matches anywhere in its text.

    Args:
        regex_exp: A regular expression as Python's `re` reads it, flags as `(?i)` in front.

    Example:
        >>> Regex("(?i)lorem ipsum").apply(Batch.of_texts(["Lorem ipsum dolor", "Lorem"])).reasons
        ['regex', None]
    """

    regex_exp: str

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.regex_exp)
        except (re.error, OverflowError, RecursionError) as error:
            expected = f"a regular expression as Python reads it ({error})"
            check(self.NAME, "regex_exp", self.regex_exp, False, expected)

    def pins(self) -> dict[str, str]:
        """See Step. `re` takes classes of characters from Python's Unicode tables."""
        return {"unicode": unicodedata.unidata_version}

    def apply(self, batch: Batch) -> Outcome:
        search = re.compile(self.regex_exp).search  # compiled once per process: `re` remembers it
        return Outcome([None if search(text) is None else "regex" for text in batch.strings])
