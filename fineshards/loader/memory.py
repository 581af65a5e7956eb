"""Memory for batches, used again as soon as no one refers to it."""

import math
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError


class Memory:
    """Gives arrays, at most `blocks` of them from memory that earlier arrays had.

    The system takes back the pages of large arrays that a background thread made, and getting new
    ones takes several times as long as filling them. Memory is used again only when nothing refers
    to its array or to a part of it: a BytesIO knows whether its buffer is in use.
    """

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._blocks: list[tuple[int, BytesIO]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array with unknown content; raises UsageError if there is too little memory."""
        return self.joined((), shape, dtype)

    def joined(
        self, parts: Iterable[Any], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        """As `empty`, but with the content of buffers, one after the other."""
        block = self._unused(math.prod(shape) * dtype.itemsize)
        block.writelines(parts)
        return np.frombuffer(block.getbuffer(), dtype).reshape(shape)

    def _unused(self, size: int) -> BytesIO:
        """A block, to be written from its beginning on."""
        for held, block in self._blocks:
            if held == size:
                try:
                    block.truncate(size)
                except BufferError:  # something refers to it
                    continue
                block.seek(0)
                return block
        try:
            block = BytesIO(bytes(size))
        except MemoryError:
            raise UsageError(
                f"a batch needs {size:,} bytes, which this process cannot get. Give a smaller "
                "batch_size or sequence_length."
            ) from None
        self._blocks.append((size, block))
        del self._blocks[: -self._most]
        return block
