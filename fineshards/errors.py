"""Errors whose message is meant for the user: what happened, where, and what to do.

Also how messages show values, which may be of any length and hold any character, and the word that
a misspelt one was meant to be.
"""

import re
from collections.abc import Iterable

# Characters that a message shows.
_LONGEST_VALUE, _LONGEST_TEXT = 80, 1000
# Control characters (C0 but the tab, DEL, C1), marks and overrides of the writing direction, line
# and paragraph separators, and surrogates, which no stream can encode.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Below this share of common letters two words are not misspellings of each other.
_ALIKE = 0.7


class FineshardsError(Exception):
    """Base class of the errors that fineshards raises on purpose.

    The message is enough to act on, so the command line prints it without a traceback.

    Attributes:
        exit_code: Exit status of the command line. 1: a failure. 2: wrong usage.

    Example:
        >>> import fineshards
        >>> try:
        ...     fineshards.TokenDataset("missing", sequence_length=2048)
        ... except fineshards.FineshardsError as error:
        ...     print(type(error).__name__, error.exit_code)
        OutputError 1
    """

    exit_code = 1


class UsageError(FineshardsError):
    """A flag, argument, pattern or output folder that cannot be used as given."""

    exit_code = 2


class MissingLibraryError(UsageError, ImportError):
    """A library that an extra installs is missing. The message names the extra.

    Also an ImportError, so that `try: from fineshards import verify` works as for any import.
    """


class InputError(FineshardsError):
    """A source file, row group or row that is missing, damaged or of another type than expected."""


class UnavailableError(InputError):
    """A place that does not give a file's bytes now, which says nothing of the file itself."""


class OutputError(FineshardsError):
    """An output folder that cannot be read or written, or does not hold what it should."""


def clipped(text: str, most: int = _LONGEST_TEXT, start: int = 0) -> str:
    """At most a number of characters, from a position on; dots stand for what is left out."""
    end = start + most
    return f"{'...' if start else ''}{text[start:end]}{'...' if text[end:] else ''}"


def quoted(value: object) -> str:
    """A value as Python writes it, and not longer than a line.

    Example:
        >>> from fineshards.errors import quoted
        >>> quoted("a"), len(quoted("a" * 10**6))
        ("'a'", 83)
    """
    return clipped(repr(value), _LONGEST_VALUE)


def contrasted(was: object, now: object, words: str = "was {}, now {}") -> str:
    """Two values that differ. Of long ones a line is shown that begins before the difference.

    Example:
        >>> from fineshards.errors import contrasted
        >>> contrasted("a", "b")
        "was 'a', now 'b'"
    """
    return contrasted_texts(repr(was), repr(now), _LONGEST_VALUE, words)


def contrasted_texts(
    was: str, now: str, most: int = _LONGEST_TEXT, words: str = "was {}, now {}"
) -> str:
    """As `contrasted`, of texts as they are."""
    start = 0
    if max(len(was), len(now)) > most:
        pairs = enumerate(zip(was, now, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(was), len(now)))
        start = max(same - most // 4, 0)
    return words.format(clipped(was, most, start), clipped(now, most, start))


def with_escaped_bytes(text: str) -> str:
    """A text or path with what is not UTF-8 escaped; otherwise as it is."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return text.encode("utf-8", "backslashreplace").decode()


def printable(line: str) -> str:
    r"""One line in which control characters are visible escapes.

    So a file, a column or a document cannot clear the terminal, or print lines of its own.

    Example:
        >>> print(printable("a\x1b[2J\nfinished"))
        a\x1b[2J\nfinished
    """
    return _UNPRINTABLE.sub(lambda character: character[0].encode("unicode_escape").decode(), line)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence that names the choices most like a misspelt or shortened word; "" if none is.

    Example:
        >>> did_you_mean("--outptu", ["--input", "--output"])
        ' Did you mean --output?'
        >>> did_you_mean("--test", ["--test_fraction", "--test_shards"])
        ' Did you mean --test_fraction or --test_shards?'
        >>> did_you_mean("--verbose", ["--input", "--output"])
        ''
        >>> did_you_mean("--output", ["--input", "--output"])
        ''
    """
    from difflib import get_close_matches  # only mistakes pay for the import

    bare = {choice.lstrip("-"): choice for choice in choices}
    if word in bare.values():
        return ""  # a choice, but not here: not a misspelling
    wanted = word.lstrip("-").lower()
    close = get_close_matches(wanted, bare, n=1, cutoff=_ALIKE)
    if not close and len(wanted) > 2:
        close = sorted(name for name in bare if name.startswith(wanted))[:3]
    return f" Did you mean {' or '.join(bare[name] for name in close)}?" if close else ""
