"""Where documents begin in samples, for attention that does not cross document boundaries.

An EOT starts every document and occurs nowhere else, so the tokens alone are enough. Each function
takes one sample, shape (T,), or a batch, shape (B, T), of whole samples or of model inputs. Every
row counts as the start of a document, even where it begins in the middle of one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]


def document_starts(tokens: Tokens, eot: int) -> npt.NDArray[np.int64]:
    """Positions in the flattened tokens where a document or a row begins: int64, increasing."""
    begins = tokens == eot
    begins[..., :1] = True
    return np.flatnonzero(begins)


def cu_seqlens(tokens: Tokens, eot: int) -> npt.NDArray[np.int32]:
    """Cumulative document lengths: 0, every later start, then the number of tokens.

    The format of FlashAttention's `flash_attn_varlen_func`, for a batch flattened to one row.

    Args:
        tokens: uint32, shape (T,) or (B, T).
        eot: The token that starts every document; `TokenDataset.eot`.

    Returns:
        int32, shape (documents + 1,).

    Example:
        >>> cu_seqlens(np.array([[9, 1, 9, 2], [3, 4, 5, 9]], np.uint32), eot=9).tolist()
        [0, 2, 4, 7, 8]
    """
    return np.append(document_starts(tokens, eot), tokens.size).astype(np.int32)


def position_ids(tokens: Tokens, eot: int) -> npt.NDArray[np.int32]:
    """The position of each token in its document, counted from the row's start at the earliest.

    Args:
        tokens: uint32, shape (T,) or (B, T).
        eot: The token that starts every document; `TokenDataset.eot`.

    Returns:
        int32, in the shape of `tokens`.

    Example:
        >>> position_ids(np.array([[9, 1, 9, 2], [3, 4, 5, 9]], np.uint32), eot=9).tolist()
        [[0, 1, 0, 1], [0, 1, 2, 0]]
    """
    starts = document_starts(tokens, eot)
    lengths = np.diff(np.append(starts, tokens.size))
    positions = np.arange(tokens.size) - np.repeat(starts, lengths)
    return positions.astype(np.int32).reshape(tokens.shape)
