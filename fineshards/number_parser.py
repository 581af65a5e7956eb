"""Whole numbers as people write them: 100M, 1e8, 100_000, 64MiB."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from fineshards.errors import quoted

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{1,30}(?:_\d{1,30})*)(?:\.(?P<fraction>\d{1,30}))?"
    r"(?:[eE]\+?(?P<exponent>\d{1,2}))?(?: ?(?P<unit>[kKMGT]i?)?(?P<bytes>B)?)",
    re.ASCII,
)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def count(text: str) -> int:
    """The number that a text means, with k, M, G and T for thousands, millions and so on.

    Raises ArgumentTypeError for what is not a whole number.

    Example:
        >>> count("1.5G"), count("1e8"), count("100_000")
        (1500000000, 100000000, 100000)
    """
    return _whole_number(text, "such as 100000000, 100M or 1e8", in_bytes=False)


def byte_count(text: str) -> int:
    """The number of bytes that a text means: as `count`, and with KiB, MiB and so on.

    Raises ArgumentTypeError for what is not a whole number.

    Example:
        >>> byte_count("64MiB"), byte_count("64MB"), byte_count("1.5Ki")
        (67108864, 64000000, 1536)
    """
    return _whole_number(text, "of bytes such as 64MiB or 67108864", in_bytes=True)


def count_or_share(text: str) -> int | str:
    """A number as `count` reads it; a share such as `0.1%` as it is."""
    return text if text.endswith("%") else count(text)


def _whole_number(text: str, examples: str, in_bytes: bool) -> int:
    found = _NUMBER.fullmatch(text)
    refused = ArgumentTypeError(f"must be a whole number {examples}, got {quoted(text)}")
    if found is None:
        raise refused
    unit = found["unit"] or ""
    binary = unit.endswith("i")
    if (binary or found["bytes"]) and not in_bytes:
        raise refused
    fraction = found["fraction"] or ""
    factor: int = (1024 if binary else 1000) ** _POWERS[unit[:1].upper()]
    zeros: int = 10 ** int(found["exponent"] or 0)
    scaled = int(found["whole"] + fraction) * factor * zeros
    divisor: int = 10 ** len(fraction)
    value, rest = divmod(scaled, divisor)
    if rest:
        raise refused
    return -value if found["sign"] == "-" else value
