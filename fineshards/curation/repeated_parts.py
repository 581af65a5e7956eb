"""Lines or paragraphs that have been there before."""

from __future__ import annotations

from collections.abc import Sequence


def repeats(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts are equal to an earlier one, and how many characters they have.

    Example:
        >>> repeats(["one", "two", "one", "one"])
        (2, 6)
    """
    distinct = set(parts)
    if len(distinct) == len(parts):
        return 0, 0
    characters = sum(map(len, parts)) - sum(map(len, distinct))
    return len(parts) - len(distinct), characters
