"""The fast encoder with exactly the tokens of its reference.

Three measures ensure this. Documents with a code point that the two libraries treat differently
are encoded by the reference (`differences.py`). Golden texts are compared when a worker
starts. In every job a sample of the documents is encoded by both (`reference_check.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.differences import Scheme
from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.encoders.gigatoken_encoder import GigatokenTokenizer


class ExactEncoder(Encoder):
    """Encodes with gigatoken, except the few documents that only the reference gets right."""

    def __init__(self, fast: GigatokenTokenizer, reference: Encoder, scheme: Scheme) -> None:
        self._fast = fast
        self._scheme = scheme
        self._reference = reference
        self.name = f"{fast.name}, checked against {reference.name}"

    @property
    def reference(self) -> Encoder:
        return self._reference

    def encode(self, texts: pa.Array) -> TokenBatch:
        batch = self._fast.encode(texts)
        hard = self._scheme.documents(texts)
        if not hard.size:
            return batch
        return _replaced(batch, hard, self.reference.encode(texts.take(pa.array(hard))))

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return self.reference.decode(tokens)

    def decode_all(
        self, tokens: npt.NDArray[np.uint32], offsets: npt.NDArray[np.integer]
    ) -> pa.Array:
        return self.reference.decode_all(tokens, offsets)


def _replaced(batch: TokenBatch, places: npt.NDArray[np.int64], others: TokenBatch) -> TokenBatch:
    """Returns `batch` with the documents at `places` replaced by those of `others`, in order."""
    lengths = np.diff(batch.offsets)
    lengths[places] = np.diff(others.offsets)
    parts = []
    done = 0
    for number, place in enumerate(places.tolist()):
        parts += [batch.tokens[done : batch.offsets[place]], others.document(number)]
        done = batch.offsets[place + 1]
    parts.append(batch.tokens[done:])
    offsets = np.zeros(len(batch.offsets), np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return TokenBatch(np.concatenate(parts), offsets, by_reference=len(places))
