"""Flags that are the fields of a class: what each takes, and its help, which its docstring has."""

from __future__ import annotations

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import Field, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fineshards.credentials import refuse_secrets
from fineshards.errors import UsageError, quoted
from fineshards.flag_values import byte_count, count, utf8

# Numbers in records are counts and sizes in 63 bits.
_LIMIT = 1 << 63


def flag(
    default: Any, group: str, metavar: str | None = None, least: int = 0, decides: bool = False
) -> Any:
    """A field that is a flag: its group on the help page, and the least number that it takes.

    decides: whether it decides what is made; a dataset keeps it when it grows.
    """
    metadata = {"group": group, "metavar": metavar, "least": least, "decides": decides}
    return field(default=default, metadata=metadata)


def flags_of(options: type) -> list[Field[Any]]:
    """The fields of a class of options that are flags, in the order of the help page."""
    return [each for each in fields(options) if each.metadata]


def deciding(options: type) -> tuple[str, ...]:
    """The names of the flags that decide what is made."""
    return tuple(each.name for each in flags_of(options) if each.metadata["decides"])


def arguments_of(options: type) -> str:
    """The lines of a class's docstring that describe its fields, as they stand there."""
    return (options.__doc__ or "").partition("Args:\n")[2].partition("\n\n    Raises:")[0]


def help_texts(options: type) -> dict[str, str]:
    """The description of each field of a class of options, as one line."""
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", arguments_of(options), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


@cache
def _alternatives(options: type, name: str) -> tuple[Any, ...]:
    united = get_type_hints(options)[name]
    return get_args(united) if get_origin(united) in (Union, UnionType) else (united,)


def kinds(options: type, name: str) -> tuple[Any, ...]:
    """The types and the words that a flag takes."""
    parts = _alternatives(options, name)
    return tuple(each for part in parts for each in (get_args(part) or (part,)))


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
