"""Checks integer arguments, so that a wrong one raises one sentence instead of a traceback."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from fineshards.errors import UsageError


def checked_integer(name: str, value: SupportsIndex, minimum: int | None = None) -> int:
    """The value as an int; raises UsageError if it is not an integer or is below `minimum`.

    A boolean is an argument in the wrong place, and no integer.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (minimum is not None and number < minimum):
        limit = "" if minimum is None else f" of at least {minimum}"
        raise UsageError(f"{name} is {value!r}; give an integer{limit}.")
    return number
