"""The encoder of a job, under observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fineshards.encoders.encoder import TokenBatch
from fineshards.encoders.exact import ExactEncoder
from fineshards.encoders.golden import GOLDEN_TEXTS

_encode = ExactEncoder.encode


def watched_encode(seen: Callable[[int], object]) -> Callable[[ExactEncoder, Any], TokenBatch]:
    """An `ExactEncoder.encode` that first tells `seen` how many documents; not of golden texts."""

    def encode(self: ExactEncoder, texts: Any) -> TokenBatch:
        if tuple(texts.to_pylist()) != GOLDEN_TEXTS:
            seen(len(texts))
        return _encode(self, texts)

    return encode
