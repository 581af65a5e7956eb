"""Checks of a step's parameters: one sentence with the parameter, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fineshards.errors import UsageError


def check(step: str, name: str, value: object, holds: bool, expected: str) -> None:
    """Raises UsageError unless `holds`.

    Example:
        >>> check("sample", "rate", 0.5, True, "a number from 0 to 1")
        >>> check("sample", "rate", 2, False, "a number from 0 to 1")
        Traceback (most recent call last):
        ...
        fineshards.errors.UsageError: sample: rate is 2, expected a number from 0 to 1.
    """
    if not holds:
        raise UsageError(f"{step}: {name} is {value!r}, expected {expected}.")


def check_flags(step: Any, name: str, *flags: str) -> None:
    """Raises UsageError for a parameter among `flags` that is neither true nor false.

    step: the dataclass. name: what recipes call it.
    """
    for flag in flags:
        value = getattr(step, flag)
        check(name, flag, value, isinstance(value, bool), "true or false")


def check_counts(
    step: Any, name: str, *counts: str, least: int = 0, may_be_none: bool = False
) -> None:
    """Raises UsageError for a parameter among `counts` that is not a whole number from `least`."""
    none = ", or none" if may_be_none else ""
    for count in counts:
        value = getattr(step, count)
        fits = (is_integer(value) and value >= least) or (may_be_none and value is None)
        check(name, count, value, fits, f"a whole number from {least}{none}")


def check_limits(step: Any, name: str, *limits: str) -> None:
    """Raises UsageError for a parameter among `limits` that is neither a number from 0 nor None."""
    for limit in limits:
        value = getattr(step, limit)
        fits = value is None or (is_number(value) and value >= 0)
        check(name, limit, value, fits, "a number from 0, or none")


def is_number(value: object) -> bool:
    """Whether a value is an integer or a finite float. True and false are no numbers."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def is_integer(value: object) -> bool:
    """Whether a value is an integer. True and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def strings(step: str, name: str, value: object) -> tuple[str, ...]:
    """A parameter that is a string or a list of strings, none of them empty, as a tuple."""
    found = (value,) if isinstance(value, str) else value
    fits = isinstance(found, Sequence) and all(isinstance(one, str) and one for one in found)
    check(step, name, value, fits, "a list of strings that are not empty")
    assert isinstance(found, Sequence)
    return tuple(found)


def assign(step: object, name: str, value: object) -> None:
    """Sets a field of a frozen dataclass, from its `__post_init__` alone."""
    object.__setattr__(step, name, value)
