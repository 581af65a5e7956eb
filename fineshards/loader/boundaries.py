"""Where documents begin in samples, for attention that does not look into other documents.

An EOT starts every document and stands nowhere else, so tokens alone tell. All functions take one
sample, shape (T,), or a batch, shape (B, T), of whole samples or of a model's inputs; a row begins
a document for these purposes, even in the middle of one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]


def document_starts(tokens: Tokens, eot: int) -> npt.NDArray[np.int64]:
    """Positions in the flattened tokens at which a document or a row begins; int64, increasing."""
    begins = tokens == eot
    begins[..., :1] = True
    return np.flatnonzero(begins)


def cu_seqlens(tokens: Tokens, eot: int) -> npt.NDArray[np.int32]:
    """Cumulative lengths of the documents: 0, the later starts, and the number of tokens.

    int32, as the variable-length attention of FlashAttention takes it (`flash_attn_varlen_func`)
    for a batch that is flattened to one row.
    """
    return np.append(document_starts(tokens, eot), tokens.size).astype(np.int32)


def position_ids(tokens: Tokens, eot: int) -> npt.NDArray[np.int32]:
    """Each token's position in its document, or in its row where the document began before.

    int32, of the shape of `tokens`.
    """
    starts = document_starts(tokens, eot)
    lengths = np.diff(np.append(starts, tokens.size))
    positions = np.arange(tokens.size) - np.repeat(starts, lengths)
    return positions.astype(np.int32).reshape(tokens.shape)
