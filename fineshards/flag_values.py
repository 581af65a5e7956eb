"""Values of flags: places, shares and fractions, each in one form however it was given."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from urllib.parse import unquote

from fineshards.credentials import refuse_secrets
from fineshards.errors import UsageError, quoted, with_escaped_bytes

# A share of rows. More digits than these would choose no row of any input.
_SHARE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,12})?%")
# Of a number that would take minutes to write out.
_LONG_EXPONENT = re.compile(r"e[-+]?[\d_]{5}", re.IGNORECASE)
# The hash that decides a document's split has 32 bits.
_LEAST_FRACTION = Fraction(1, 2**32)


def place_of(name: str, value: str | os.PathLike[str]) -> str:
    """A text or path as text, with `~` for the home folder; raises UsageError for anything else.

    Shells leave the `~` of `--output=~/data` as it is.
    """
    text = value if isinstance(value, str) else getattr(value, "__fspath__", lambda: None)()
    if not isinstance(text, str):
        raise UsageError(f"--{name} must be text or a path, got {quoted(value)}.")
    return os.path.expanduser(refuse_secrets(utf8(name, text), f"--{name}"))


def local_path(place: str) -> str:
    """The local path or pattern that a file:// URL means; anything else as it is."""
    if re.match(r"[a-z][a-z0-9]+:/[^/]", place):
        raise UsageError(f"{place}: give a URL as text, with two slashes. A Path drops one.")
    if not place.startswith("file://"):
        return place
    path = unquote(place.removeprefix("file://").removeprefix("localhost"))
    if not path.startswith("/"):
        raise UsageError(f"{place}: expected file:///path, a path from the root of a disk.")
    return path


def utf8(name: str, text: str) -> str:
    """A text; raises UsageError if it is not UTF-8, which JSON and Arrow cannot hold."""
    if (shown := with_escaped_bytes(text)) != text:
        raise UsageError(f"--{name} {shown}: is not valid UTF-8. Rename it, or give another.")
    return text


def allowance(value: int | str) -> int | str:
    """A share of rows as it is; a number of rows given as text as a number."""
    if not isinstance(value, str):
        return value
    if _SHARE.fullmatch(value) and Fraction(value.removesuffix("%")) <= 100:
        return value
    if re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    raise UsageError(
        f"--max_bad_rows must be a number of rows, or a share such as 0.1%, got {quoted(value)}."
    )


def simplest(name: str, value: str | float | Fraction) -> str:
    """A fraction in lowest terms, so that 0.1, "0.10" and "1/10" are the same job."""
    try:
        if isinstance(value, bool) or _LONG_EXPONENT.search(str(value)):
            raise ValueError(value)
        # A float means the decimal that it prints as, not the binary number next to it.
        fraction = Fraction(float.__repr__(value) if isinstance(value, float) else value)
        written = str(fraction)
    except (TypeError, ValueError, ArithmeticError):
        raise UsageError(
            f"--{name} must be a number such as 0.1, got {quoted(str(value))}."
        ) from None
    if not 0 <= fraction <= 1:
        raise UsageError(f"--{name} must lie between 0 and 1, got {value}.")
    if 0 < fraction < _LEAST_FRACTION:
        raise UsageError(
            f"--{name} must be 0 or at least {_LEAST_FRACTION}, got {value}: a smaller one "
            "chooses no document."
        )
    return written
