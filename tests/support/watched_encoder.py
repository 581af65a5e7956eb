"""Observes the encoder of a job."""

from collections.abc import Callable
from typing import Any

from fineshards.encoders.checked_encoder import GOLDEN_TEXTS
from fineshards.encoders.encoder import TokenBatch
from fineshards.encoders.gigatoken.exact_encoder import ExactEncoder

_encode = ExactEncoder.encode


def watched_encode(seen: Callable[[int], object]) -> Callable[[ExactEncoder, Any], TokenBatch]:
    """An `ExactEncoder.encode` that calls `seen` with the number of documents, not golden texts."""

    def encode(self: ExactEncoder, texts: Any) -> TokenBatch:
        if tuple(texts.to_pylist()) != GOLDEN_TEXTS:
            seen(len(texts))
        return _encode(self, texts)

    return encode
