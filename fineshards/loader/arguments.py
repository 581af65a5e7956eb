"""Checks of numbers in arguments, so that a wrong one raises one sentence, not a traceback."""

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError, clipped

# The largest count, far beyond any dataset's tokens. Sums of two fit into 64 bits.
_MOST = 1 << 62
# Characters of a wrong value in a message.
_SHOWN = 60


def checked_integer(
    name: str, value: SupportsIndex, minimum: int | None = None, maximum: int = _MOST
) -> int:
    """The value as an int; raises UsageError if it is not an integer, or is out of range.

    Without a minimum every integer is allowed, as for seeds. True and False are not integers.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (minimum is not None and not minimum <= number <= maximum):
        limits = ""
        if minimum is not None:
            too_many = number is not None and number > maximum
            limits = f" from {minimum} to {maximum}" if too_many else f" of at least {minimum}"
        raise UsageError(f"{name} is {_shown(value, number)}; give an integer{limits}.")
    return number


def checked_numbers(numbers: npt.ArrayLike, length: int) -> npt.NDArray[np.int64]:
    """Sample numbers as int64, shape (n,).

    Raises UsageError unless they are integers in one dimension, IndexError for one that is not in
    range(length).
    """
    try:
        given = np.asarray(numbers)
    except ValueError:  # lists of different lengths
        given = np.asarray(numbers, dtype=object)
    # An empty list becomes an array of floats.
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError(
            f"the sample numbers have dtype {given.dtype} and shape {given.shape}; give integers "
            "in one dimension."
        )
    # `min` and `max` take twice as long for a few numbers, which is how mixtures read.
    if given.size and (np.minimum.reduce(given) < 0 or np.maximum.reduce(given) >= length):
        wrong = given[(given < 0) | (given >= length)][0]
        raise IndexError(f"there is no sample {wrong}: there are {length}, numbered from 0")
    return given.astype(np.int64, copy=False)


def _shown(value: object, number: int | None) -> str:
    """A value as one short line; Python writes out no integer of more than 4,300 digits."""
    if number is not None and abs(number) > 10**_SHOWN:
        return f"an integer of {number.bit_length():,} bits"
    return clipped(" ".join(repr(value).split()), _SHOWN)
