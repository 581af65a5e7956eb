"""The loss mask of a shard of conversations: which of its tokens are learned.

`metadata/masks/train_0017.npy` is `|u1` of shape `(ceil(tokens / 8),)`, with the header of a shard.
Bit `i % 8` of byte `i // 8` is 1 where token `i` is learned (`numpy.unpackbits` with
`bitorder="little"`), and unused bits are 0. It is a function of the shard's document table. It does
not lie beside the shard, because readers that list `train/` would take it for tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fineshards.shards import npy

# Half-open ranges of tokens, int64, shape (n, 2).
Ranges = npt.NDArray[np.int64]
MASK_DTYPE = np.dtype(np.uint8)
# Tokens whose bits are in memory at a time, one byte each.
_WINDOW = 1 << 20


def mask_content(learned: Ranges, tokens: int) -> bytes:
    """The file of the mask of a shard of `tokens` tokens.

    learned: ranges of its tokens, in order.
    """
    parts = [npy.header(-(-tokens // 8), MASK_DTYPE)]
    for start in range(0, tokens, _WINDOW):
        bits = is_learned(learned, start, min(start + _WINDOW, tokens))
        parts.append(np.packbits(bits, bitorder="little").tobytes())
    return b"".join(parts)


def is_learned(learned: Ranges, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Whether each of the tokens `[start, stop)` is in one of the ranges, which are in order."""
    begins, ends = learned[:, 0], learned[:, 1]
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(begins, stop, side="left")
    steps = np.zeros(stop - start + 1, np.int8)
    # Ranges do not overlap, so no place occurs twice in either line.
    steps[np.maximum(begins[first:last], start) - start] += 1
    steps[np.minimum(ends[first:last], stop) - start] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def count_learned(learned: Ranges) -> int:
    """The number of tokens in ranges."""
    return int((learned[:, 1] - learned[:, 0]).sum())
