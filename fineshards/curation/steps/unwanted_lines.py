"""Removes lines of web pages that are not text: menus, counters, calls to action, symbols.

The rules are those of DCLM's reproduction of RefinedWeb; that on symbols is datatrove's.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, Share, Unless, check
from fineshards.curation.punctuation import PUNCTUATION, TERMINAL_PUNCTUATION
from fineshards.curation.step import Judge, Outcome

_COUNTED = (
    *("likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes"),
    *("downvotes", "downloads", "views", "followers"),
)
# The beginning of a word of fastText that begins with a letter or a digit.
_WORD = re.compile(r"(?<![^ \n\r\t\v\f\0])[^\W_]")
_SYMBOLS = PUNCTUATION | TERMINAL_PUNCTUATION

# What is left of a line that is not empty. None: nothing, not even a line break.
_Rule = Callable[[str], str | None]
_NoPhrases = Unless(anywhere=((),), at_end=((),), at_beginning=((),))


@dataclass(frozen=True)
class DclmLines(Judge, name="dclm_lines"):
    """Removes lines of menus, counters and calls to action, as DCLM's program does.

    The rules, their order and the values are those of mlfoundations/dclm: `modifiers.py` of
    baselines/mappers, and what dclm_baseline_refinedweb.yaml calls between `word_counter_enricher`
    and `word_removal_ratio_filter`. White space at both ends of the text is removed.

    A document is dropped as `removed_words` if it loses too many of its words, and as `empty` if it
    has no words, or nothing is left. Its words are those of fastText's tokenizer that begin with a
    letter or a digit; a line's are separated by white space.

    Args:
        max_uppercase_ratio: A line is removed if more of its characters are upper case.
        max_numeric_ratio: A line is removed if more of its characters are digits. The default
            means digits alone, in lines of up to a million characters.
        counted: A line is removed if it is a number of these, such as `3 likes` or `1.2K views`.
        min_words_per_line: A line with fewer words is removed, unless it is empty.
        short_line_words: The most words of a line that phrases are cut out of.
        anywhere: Phrases that are cut out of short lines. Upper and lower case are the same. A dot
            is any character, as in DCLM.
        at_end: Phrases that are cut off at the end of short lines.
        at_beginning: Phrases that are cut off at the beginning of short lines.
        max_removed_ratio: The largest share of words that a document may lose.

    Example:
        >>> text = "HOME | ABOUT US\\nA line to keep. Read more of it\\n3 likes"
        >>> DclmLines(max_removed_ratio=1).apply(Batch.of_texts([text])).texts
        ['A line to keep. Read more of it']
    """

    REWRITES: ClassVar[bool] = True

    max_uppercase_ratio: Share = 0.5
    max_numeric_ratio: Share = 0.999999
    counted: tuple[str, ...] = _COUNTED
    min_words_per_line: Count = 2
    short_line_words: Annotated[Count, _NoPhrases] = 10
    anywhere: tuple[str, ...] = ("items in cart",)
    at_end: tuple[str, ...] = ("Read more...",)
    at_beginning: tuple[str, ...] = ("Sign-in",)
    max_removed_ratio: Share = 0.05

    def pins(self) -> dict[str, str]:
        """See Step. Unicode's tables decide what is upper case, a digit or white space."""
        return {"unicode": unicodedata.unidata_version}

    def apply(self, batch: Batch) -> Outcome:
        rules = self._rules()
        judged = [self._judge(text, rules) for text in batch.strings]
        return Outcome([reason for reason, _ in judged], [text for _, text in judged])

    def _judge(self, text: str, rules: Sequence[_Rule]) -> tuple[str | None, str]:
        """Why a document is dropped, and its text from here on."""
        rest = text
        for rule in rules:
            lines = [line and rule(line) for line in rest.split("\n")]
            rest = "\n".join(line for line in lines if line is not None).strip()
        words, left = (len(_WORD.findall(part)) for part in (text, rest))
        if not words or not rest:
            return "empty", rest
        removed = (words - left) / words
        return "removed_words" if removed > self.max_removed_ratio else None, rest

    def _rules(self) -> list[_Rule]:
        nothing = "(?!)"
        counted = "|".join(map(re.escape, self.counted)) or nothing
        counter = re.compile(rf"\W*\d[\d,.]*[kmb]?\s+(?:{counted})\W*")
        least, longest = self.min_words_per_line, self.short_line_words
        anywhere, at_end, at_beginning = (
            "|".join(re.escape(phrase).replace(r"\.", ".") for phrase in phrases) or nothing
            for phrases in (self.anywhere, self.at_end, self.at_beginning)
        )
        return [
            _removing(lambda line: _share(line, str.isupper) > self.max_uppercase_ratio),
            _removing(lambda line: _share(line, str.isdigit) > self.max_numeric_ratio),
            _removing(lambda line: counter.fullmatch(line.lower()) is not None),
            _removing(lambda line: len(line.split(None, least)) < least),
            _cutting(rf"\s?(?:{anywhere})", longest),
            _cutting(rf"\s?(?:{at_end})\Z", longest),
            _cutting(rf"\A(?:{at_beginning})\s?", longest),
        ]


def _removing(condition: Callable[[str], bool]) -> _Rule:
    return lambda line: None if condition(line) else line


def _cutting(expression: str, longest: int) -> _Rule:
    phrase = re.compile(expression, re.IGNORECASE)

    def cut(line: str) -> str | None:
        if len(line.split(None, longest)) > longest:
            return line
        left = phrase.sub("", line)
        return left if left.strip() else None

    return cut


def _share(line: str, holds: Callable[[str], bool]) -> float:
    """The share of the characters of a line of which something holds."""
    return sum(map(holds, line)) / len(line)


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
        lines, removing = [], False
        for line in text.splitlines():
            # A line is of symbols alone if nothing is left of it without them. Line feeds and
            # other separators that are among them would have ended the line.
            symbols_only = not line.strip(removable) and line.strip() != ""
            if not symbols_only:
                lines.append(line)
            elif self.replace_char and not removing:
                lines.append(self.replace_char)
            removing = symbols_only
        return "\n".join(lines)
