"""Memory for batches, used again as soon as no one refers to it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError

# The list of blocks, the loop's variable and the argument of getrefcount.
_UNUSED = 3


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
        size = int(np.prod(shape)) * dtype.itemsize
        for block in self._blocks:
            if block.nbytes == size and sys.getrefcount(block) == _UNUSED:
                break
        else:
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
