"""A set of strings that takes little more memory than their bytes, for lists of millions."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.split_hash import hash_texts

# Strings whose hashes are Python integers at once.
_HASHED = 1 << 18
# Characters whose lines are Python strings at once.
_READ_CHARS = 1 << 22


class StringSet:
    """Strings sorted by their hashes. A hash only finds candidates; the bytes decide.

    Example:
        >>> domains = StringSet(pa.array(["a.org", "b.org"], pa.large_string()))
        >>> domains.contains(["b.org", "c.org"]).tolist()
        [True, False]
    """

    def __init__(self, strings: pa.Array) -> None:
        strings = strings.unique()
        parts = [
            hash_texts(strings.slice(start, _HASHED)) for start in range(0, len(strings), _HASHED)
        ]
        hashes = np.concatenate([np.empty(0, np.uint64), *parts])
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._strings = strings.take(pa.array(order))

    def __len__(self) -> int:
        return len(self._strings)

    def contains(self, values: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each of n values is in the set, shape (n,)."""
        hashes = hash_texts(pa.array(values, pa.large_string()))
        left = np.searchsorted(self._hashes, hashes, "left")
        right = np.searchsorted(self._hashes, hashes, "right")
        found = left < right
        for index in np.flatnonzero(found).tolist():
            candidates = self._strings.slice(left[index], right[index] - left[index])
            found[index] = values[index] in candidates.to_pylist()
        return found


def lines_of(file: str, content: bytes) -> pa.Array:
    """The lines of a list, without white space around them, but those that begin with `#`.

    Line breaks are those of Python's text files. Raises InputError for text that is not UTF-8.
    file: its path, for the message.
    """
    opened = io.TextIOWrapper(io.BytesIO(content), "utf-8")
    parts = [pa.array([], pa.large_string())]
    try:
        while lines := opened.readlines(_READ_CHARS):
            kept = [line.strip() for line in lines if not line.startswith("#")]
            parts.append(pa.array(kept, pa.large_string()))
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 ({error}). Convert the list.") from error
    return pa.concat_arrays(parts)
