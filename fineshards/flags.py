"""Flags that are the fields of a class: what each takes, its help, and its values in one form."""

import operator
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import Field, field, fields
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from fineshards.credentials import refuse_secrets
from fineshards.errors import UsageError, did_you_mean, quoted, with_escaped_bytes
from fineshards.plugin_registry import Plugins

# Numbers in records are counts and sizes in 63 bits.
_LIMIT = 1 << 63
# A share of rows. More digits than these would choose no row of any input.
_SHARE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,12})?%")
# Of a number that would take minutes to write out.
_LONG_EXPONENT = re.compile(r"e[-+]?[\d_]{5}", re.IGNORECASE)
# The hash that decides a document's split has 32 bits.
_LEAST_FRACTION = Fraction(1, 2**32)
# Whole numbers as people write them: 100M, 1e8, 100_000, 64MiB.
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{1,30}(?:_\d{1,30})*)(?:\.(?P<fraction>\d{1,30}))?"
    r"(?:[eE]\+?(?P<exponent>\d{1,2}))?(?: ?(?P<unit>[kKMGT]i?)?(?P<bytes>B)?)",
    re.ASCII,
)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def flag(
    default: Any,
    group: str,
    metavar: str | None = None,
    least: int = 0,
    decides: bool = False,
    plugins: str | None = None,
) -> Any:
    """A field that is a flag: its group on the help page, and the least number that it takes.

    decides: whether it decides what is made; a dataset keeps it when it grows. plugins: the group
    of plug-ins whose names it takes, in addition to its default.
    """
    about: dict[str, Any] = {"group": group, "metavar": metavar, "least": least, "decides": decides}
    about["plugins"] = None if plugins is None else Plugins[Any](plugins)
    return field(default=default, metadata=about)


def flags_of(options: type) -> list[Field[Any]]:
    """The fields of a class of options that are flags, in the order of the help page."""
    return [flag for flag in fields(options) if flag.metadata]


def deciding(options: type) -> tuple[str, ...]:
    """The names of the flags that decide what is made."""
    return tuple(flag.name for flag in flags_of(options) if flag.metadata["decides"])


def arguments_of(options: type) -> str:
    """The lines of a class's docstring that describe its fields, as they stand there."""
    return (options.__doc__ or "").partition("Args:\n")[2].partition("\n\n    Raises:")[0]


def help_texts(options: type) -> dict[str, str]:
    """The description of each field of a class of options, as one line."""
    matches = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", arguments_of(options), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in matches}


@cache
def _alternatives(options: type, name: str) -> tuple[Any, ...]:
    united = get_type_hints(options)[name]
    return get_args(united) if get_origin(united) in (Union, UnionType) else (united,)


def kinds(options: type, name: str) -> tuple[Any, ...]:
    """The types and the words that a flag takes."""
    parts = _alternatives(options, name)
    return tuple(kind for part in parts for kind in (get_args(part) or (part,)))


def choices(options: type, name: str) -> tuple[str, ...]:
    """The words that a flag takes, if it takes no others."""
    words = [get_args(p) for p in _alternatives(options, name) if get_origin(p) is Literal]
    return words[0] if words else ()


def takes_several(options: type, name: str) -> bool:
    """Whether a flag takes one value or more."""
    return any(get_origin(part) is Sequence for part in _alternatives(options, name))


def checked(options: object, flag: Field[Any]) -> Any:
    """The value of a flag: a word that is allowed, a text, or a whole number that is large enough.

    Raises UsageError for any other.
    """
    name, value = flag.name, getattr(options, flag.name)
    takes, words = kinds(type(options), name), choices(type(options), name)
    if value is None and NoneType in takes:
        return value
    if words and value not in words:
        raise UsageError(f"--{name} must be {' or '.join(words)}, got {quoted(value)}.")
    if bool in takes and not isinstance(value, bool):
        raise UsageError(f"--{name} must be True or False, got {quoted(value)}.")
    if set(takes) <= {str, NoneType} and not isinstance(value, str):
        raise UsageError(f"--{name} must be text, got {quoted(value)}.")
    if isinstance(value, str):
        refuse_secrets(utf8(name, value), f"--{name}")
        _check_plugin(flag, value)
        if int in takes and str not in takes:
            try:
                value = (byte_count if name.endswith("_bytes") else count)(value)
            except ArgumentTypeError as error:
                raise UsageError(f"--{name} {error}.") from None
    if int not in takes or isinstance(value, str):
        return value
    # Integers of numpy count too; a bool does not.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        share = " or a share such as '0.1%'" if str in takes else ""
        raise UsageError(f"--{name} must be a whole number{share}, got {quoted(value)}.")
    value = operator.index(value)
    if value >= _LIMIT:
        raise UsageError(f"--{name} must be less than 2^63, got {value}.")
    if value < (least := flag.metadata["least"]):
        raise UsageError(f"--{name} must be at least {least}, got {value}.")
    return value


def _check_plugin(flag: Field[Any], value: str) -> None:
    """Raises UsageError for a name that no plug-in has, if the flag takes those of a group."""
    plugins = flag.metadata["plugins"]
    if plugins is None or value == flag.default or value in plugins:
        return
    names = [*([flag.default] if isinstance(flag.default, str) else []), *plugins]
    raise UsageError(
        f"--{flag.name} {value}: there is no such {flag.metadata['metavar'].lower()}."
        f"{did_you_mean(value, names)} There are {', '.join(names)}."
    )


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


def _whole_number(text: str, examples: str, in_bytes: bool) -> int:
    match = _NUMBER.fullmatch(text)
    refused = ArgumentTypeError(f"must be a whole number {examples}, got {quoted(text)}")
    if match is None:
        raise refused
    unit = match["unit"] or ""
    binary = unit.endswith("i")
    if (binary or match["bytes"]) and not in_bytes:
        raise refused
    fraction = match["fraction"] or ""
    factor: int = (1024 if binary else 1000) ** _POWERS[unit[:1].upper()]
    zeros: int = 10 ** int(match["exponent"] or 0)
    scaled = int(match["whole"] + fraction) * factor * zeros
    divisor: int = 10 ** len(fraction)
    value, rest = divmod(scaled, divisor)
    if rest:
        raise refused
    return -value if match["sign"] == "-" else value


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


def allowance(name: str, value: int | str) -> int | str:
    """A share of rows, or of files, as it is; a number of them given as text as a number."""
    if not isinstance(value, str):
        return value
    if _SHARE.fullmatch(value) and Fraction(value.removesuffix("%")) <= 100:
        return value
    try:
        return count(value)
    except ArgumentTypeError:
        raise UsageError(
            f"--{name} must be a number, or a share such as 0.1%, got {quoted(value)}."
        ) from None


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
