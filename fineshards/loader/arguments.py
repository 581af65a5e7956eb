"""Numbers that a caller gives, checked: errors are a sentence, not a traceback."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from fineshards.errors import UsageError


def whole_number(name: str, value: SupportsIndex, least: int | None = None) -> int:
    """The value as an int; raises UsageError unless it is a whole number, from `least` on."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        start = "" if least is None else f" from {least} on"
        raise UsageError(f"{name} is {value!r}; give a whole number{start}.")
    return number
