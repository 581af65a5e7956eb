"""Where documents begin in samples, for attention that does not cross document boundaries.

An EOT starts every document, and one inside of a document that was tokens already counts as a start
too. So tokens alone are enough, unless some were redacted: all of such a document are EOT. Each
public function takes one sample, shape (T,), or a batch, shape (B, T), of whole samples or of model
inputs. Every row counts as the start of a document, even in the middle of one.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.integer]
Bools: TypeAlias = npt.NDArray[np.bool_]


def starts(tokens: Tokens, eot: int | Tokens) -> Bools:
    """Whether a document or a row begins at each token: bool, in the shape of `tokens`."""
    begins: Bools = tokens == eot
    begins[..., :1] = True
    return begins


def whole_documents(
    starts: npt.NDArray[np.int64], begin: int, redacted: Callable[[npt.NDArray[np.int64]], Bools]
) -> npt.NDArray[np.int64]:
    """Document starts without those within redacted documents, whose tokens are all EOT.

    starts: positions from `begin` on: int64, increasing; the first is kept. redacted: which of some
    EOTs that follow an EOT are in such a document, behind its first token.
    """
    behind = np.flatnonzero(np.diff(starts) == 1) + 1
    return np.delete(starts, behind[redacted(begin + starts[behind])]) if len(behind) else starts


def joined_ranges(
    begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The numbers of ranges [begins[i], ends[i]), one after the other."""
    sizes = ends - begins
    ahead = np.cumsum(sizes)
    offsets: npt.NDArray[np.int64] = np.repeat(begins - ahead + sizes, sizes)
    return offsets + np.arange(len(offsets))


def cu_seqlens(tokens: Tokens, eot: int) -> npt.NDArray[np.int32]:
    """Cumulative document lengths: 0, every later start, then the number of tokens.

    The format of FlashAttention's `flash_attn_varlen_func`, for a batch flattened to one row.

    Args:
        tokens: Integers, shape (T,) or (B, T).
        eot: The token that starts every document; `TokenDataset.eot`.

    Returns:
        int32, shape (documents + 1,).

    Example:
        >>> cu_seqlens(np.array([[9, 1, 9, 2], [3, 4, 5, 9]], np.uint32), eot=9).tolist()
        [0, 2, 4, 7, 8]
    """
    return cumulative_lengths(starts(tokens, eot))


def position_ids(tokens: Tokens, eot: int) -> npt.NDArray[np.int32]:
    """The position of each token in its document, counted from the row's start at the earliest.

    Args:
        tokens: Integers, shape (T,) or (B, T).
        eot: The token that starts every document; `TokenDataset.eot`.

    Returns:
        int32, in the shape of `tokens`.

    Example:
        >>> position_ids(np.array([[9, 1, 9, 2], [3, 4, 5, 9]], np.uint32), eot=9).tolist()
        [[0, 1, 0, 1], [0, 1, 2, 0]]
    """
    return positions(cu_seqlens(tokens, eot)).reshape(tokens.shape)


def cumulative_lengths(begins: Bools) -> npt.NDArray[np.int32]:
    """`cu_seqlens` of where documents begin, shape (n, T)."""
    return np.append(np.flatnonzero(begins), begins.size).astype(np.int32)


def positions(ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """`position_ids` of the documents of `cu_seqlens`: int32, shape (tokens,)."""
    if len(ends) < 2:
        return np.empty(0, np.int32)
    lengths = np.diff(ends)
    numbers = np.arange(lengths.max(), dtype=np.int32)
    # Copying is several times faster than arithmetic on every token.
    return np.concatenate([numbers[:length] for length in lengths.tolist()])
