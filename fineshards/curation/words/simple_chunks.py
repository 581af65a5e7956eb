"""Words of chunks that are plain words between common punctuation, without asking spaCy.

Half of the chunks that a worker has not seen yet are ASCII letters with a bracket or quotation mark
before them and a comma, a point or the like after them. spaCy's rules cut these off one by one,
unless a special case is met on the way: so there must be none.
`tools/special_cases.py` compares with spaCy.
"""

from __future__ import annotations

import re
from collections.abc import Container

BEFORE = '("“['
AFTER = ',;:!?)]"”'

# A point is cut off after a small letter only, and not before another one.
_SIMPLE = re.compile(
    rf"([{re.escape(BEFORE)}]?)([A-Za-z]+)((?:(?<=[a-z])\.|[{re.escape(AFTER)}])?)"
    rf"([{re.escape(AFTER)}]?)"
)


def simple_words(chunk: str, special_cases: Container[str]) -> list[str] | None:
    """The words of a simple chunk, or None if it is not simple.

    special_cases: the texts of all special cases.

    Example:
        >>> simple_words("(all),", set()), simple_words("isn't", set())
        (['(', 'all', ')', ','], None)
        >>> simple_words("(Mr.", {"Mr."})
    """
    if chunk.isascii() and chunk.isalpha():
        return None if chunk in special_cases else [chunk]
    found = _SIMPLE.fullmatch(chunk)
    if not found:
        return None
    words = [part for part in found.groups() if part]
    count = len(words)
    joined = ("".join(words[a:b]) for a in range(count) for b in range(a + 1, count + 1))
    return None if any(text in special_cases for text in joined) else words
