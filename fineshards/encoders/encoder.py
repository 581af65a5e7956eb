"""The interface of an encoder: Arrow strings in, one flat token array out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Encoded documents, concatenated.

    tokens: uint32, shape (n,). offsets: int64, shape (documents + 1,); document i is
    `tokens[offsets[i]:offsets[i + 1]]` and its first token is the EOT.
    by_reference: number of documents that the reference encoder encoded.
    """

    tokens: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]
    by_reference: int

    def document(self, index: int) -> npt.NDArray[np.uint32]:
        """The tokens of one document, EOT first."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


class Encoder(Protocol):
    """Encodes each text as a document: `[EOT] + encode_ordinary(text)`.

    The output of the tokenizer's own library is the definition of correct. For tiktoken that is
    `encode_ordinary`: special tokens that occur literally in a text are ordinary text.
    """

    @property
    def name(self) -> str:
        """The libraries in use and their versions, for messages."""
        ...

    @property
    def reference(self) -> Encoder:
        """The encoder that defines what is correct; itself if there is no faster one."""
        ...

    def encode(self, texts: pa.Array) -> TokenBatch:
        """Encodes strings (large_string without nulls, shape (documents,)) as documents."""
        ...

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        """Decodes tokens to text, without EOTs. Incomplete characters become U+FFFD."""
        ...
