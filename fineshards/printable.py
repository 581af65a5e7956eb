"""Text that comes from data, made safe for a terminal."""

from __future__ import annotations

import re

# Control characters (C0 but the tab, DEL, C1), marks and overrides of the writing direction, line
# and paragraph separators, and surrogates, which no stream can encode.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(line: str) -> str:
    r"""One line in which control characters are visible escapes.

    So a file, a column or a document cannot clear the terminal, or print lines of its own.

    Example:
        >>> print(printable("a\x1b[2J\nfinished"))
        a\x1b[2J\nfinished
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), line)
