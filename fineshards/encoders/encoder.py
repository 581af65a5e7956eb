"""The interface of a tokenizer: a batch of Arrow strings in, one flat token array out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The documents of a batch, one after the other.

    tokens: uint32, shape (n,). offsets: int64, shape (documents + 1,); document i is
    `tokens[offsets[i]:offsets[i + 1]]` and its first token is the EOT.
    by_reference: how many of the documents the reference encoder made.
    """

    tokens: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]
    by_reference: int

    def document(self, index: int) -> npt.NDArray[np.uint32]:
        """The tokens of one document, EOT first."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


class Encoder(Protocol):
    """Turns texts into documents: `[EOT] + encode_ordinary(text)` each, as the seed does.

    What the tokenizer's own library gives is the definition of correct. For tiktoken that is
    `encode_ordinary`: special tokens that stand literally in a text are ordinary text.
    """

    @property
    def name(self) -> str:
        """The libraries that do it, with their versions, for people."""
        ...

    @property
    def reference(self) -> Encoder:
        """The encoder that defines what is correct: itself, where nothing faster is at work."""
        ...

    def encode(self, texts: pa.Array) -> TokenBatch:
        """Encodes strings without nulls (large_string, shape (documents,)) into documents."""
        ...

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        """The text of tokens, without special ones; cut characters become U+FFFD."""
        ...
