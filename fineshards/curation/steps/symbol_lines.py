"""Removes lines that consist of symbols: datatrove's SymbolLinesFormatter."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import check
from fineshards.curation.punctuation import PUNCTUATION, TERMINAL_PUNCTUATION
from fineshards.curation.step import Judge, Outcome

_SYMBOLS = PUNCTUATION | TERMINAL_PUNCTUATION


@dataclass(frozen=True)
class SymbolLines(Judge, name="symbol_lines"):
    """Removes the lines that have symbols and spaces alone. Lines of white space alone stay.

    All line breaks become "\\n", and one at the end of the text is removed.

    Args:
        symbols_to_remove: The symbols, one character each. None: punctuation of many scripts and
            control characters.
        replace_char: The line that a run of removed lines leaves; none if empty.

    Example:
        >>> SymbolLines(replace_char="").apply(Batch.of_texts(["a\\n* * *\\nb"])).texts
        ['a\\nb']
    """

    REWRITES: ClassVar[bool] = True

    symbols_to_remove: tuple[str, ...] | None = None
    replace_char: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        symbols = self.symbols_to_remove
        fits = all(len(symbol) == 1 for symbol in symbols or ())
        check(self.NAME, "symbols_to_remove", symbols, fits, "a list of single characters")

    def pins(self) -> dict[str, str]:
        """See Step. Unicode's tables decide what white space is."""
        return {"unicode": unicodedata.unidata_version}

    def apply(self, batch: Batch) -> Outcome:
        symbols = _SYMBOLS if self.symbols_to_remove is None else self.symbols_to_remove
        removable = "".join(sorted({*symbols, " "}))
        return Outcome(texts=[self._rewrite(text, removable) for text in batch.strings])

    def _rewrite(self, text: str, removable: str) -> str:
        kept, removing = [], False
        for line in text.splitlines():
            # A line is of symbols alone if nothing is left of it without them. Line feeds and
            # other separators that are among them would have ended the line.
            symbols_only = not line.strip(removable) and line.strip() != ""
            if not symbols_only:
                kept.append(line)
            elif self.replace_char and not removing:
                kept.append(self.replace_char)
            removing = symbols_only
        return "\n".join(kept)
