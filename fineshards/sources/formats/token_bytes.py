"""Ranges of bytes of token files, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile


def read_array(
    file: SourceFile, opened: BinaryIO, dtype: Any, offset: int, count: int
) -> npt.NDArray[Any]:
    """`count` values from byte `offset` on; raises InputError if the file ends before."""
    kind = np.dtype(dtype)
    opened.seek(offset)
    content = opened.read(count * kind.itemsize)
    if len(content) != count * kind.itemsize:
        raise InputError(
            f"{file.path}: ends at byte {offset + len(content):,}, expected "
            f"{offset + count * kind.itemsize:,}. It is truncated, or changed while it was read."
        )
    return np.frombuffer(content, kind)


def ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """`[start, stop)` in parts of `size`."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
