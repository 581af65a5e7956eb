"""Memory for batches, used again as soon as no one refers to it."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError

# A block that only its list refers to. What the interpreter counts beside that differs between
# versions, so `_references` compares with this one, counted at the same place in the same way.
_UNUSED = [np.empty(1, np.uint8)]
# Without the interpreter lock, counts of other threads' references are not exact.
_COUNTS_ARE_EXACT = getattr(sys, "_is_gil_enabled", lambda: True)()


class Memory:
    """Gives arrays, at most `blocks` of them from memory that earlier arrays had.

    The system takes back the pages of large arrays that a background thread made, and getting new
    ones takes several times as long as filling them. An array is used again only when nothing
    refers to it or to a part of it, just as its memory would be after it was freed.
    """

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array with unknown content; raises UsageError if there is too little memory."""
        size = math.prod(shape) * dtype.itemsize
        block = self._unused(size)
        if block is None:
            try:
                block = np.empty(size, np.uint8)
            except MemoryError:
                raise UsageError(
                    f"a batch needs {size:,} bytes, which this process cannot get. Give a smaller "
                    "batch_size or sequence_length."
                ) from None
            self._blocks.append(block)
            del self._blocks[: -self._most]
        return block.view(dtype).reshape(shape)

    def _unused(self, size: int) -> npt.NDArray[np.uint8] | None:
        if _COUNTS_ARE_EXACT:
            for at in range(len(self._blocks)):
                if self._blocks[at].nbytes == size and (
                    _references(self._blocks, at) <= _references(_UNUSED, 0)
                ):
                    return self._blocks[at]
        return None


def _references(blocks: list[npt.NDArray[np.uint8]], at: int) -> int:
    return sys.getrefcount(blocks[at])
