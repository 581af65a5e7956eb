"""The interface of an encoder: Arrow strings in, one flat token array out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.tables.documents import LEARNED


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Encoded documents, concatenated.

    tokens: uint32, shape (n,). offsets: int64, shape (documents + 1,); document i is
    `tokens[offsets[i]:offsets[i + 1]]` and its first token is the EOT.
    by_reference: number of documents that the reference encoder encoded.
    learned: of conversations, the ranges of tokens that are learned, as in the document tables;
    None of texts. refused: (index, reason) of each that cannot be encoded, and has no tokens.
    """

    tokens: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]
    by_reference: int
    learned: pa.Array | None = None
    refused: tuple[tuple[int, str], ...] = ()

    def document(self, index: int) -> npt.NDArray[np.uint32]:
        """The tokens of one document, EOT first."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def learned_lists(learned: Sequence[npt.NDArray[np.int32]]) -> pa.Array:
    """The learned ranges of documents, shape (k, 2) each, as the document tables have them."""
    offsets = np.cumsum([0, *(ranges.size for ranges in learned)], dtype=np.int32)
    flat = np.concatenate([np.empty(0, np.int32), *(ranges.ravel() for ranges in learned)])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=LEARNED.type)


def joined(documents: Sequence[npt.NDArray[np.uint32] | str], by_reference: int) -> TokenBatch:
    """A batch of documents: the tokens of each with its EOT, or why it is refused.

    by_reference: how many the reference encoded or refused.
    """
    nothing = np.empty(0, np.uint32)
    refused = [(index, why) for index, why in enumerate(documents) if isinstance(why, str)]
    parts = [nothing if isinstance(document, str) else document for document in documents]
    tokens = np.concatenate([nothing, *parts])
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    encoded = min(by_reference, len(parts) - len(refused))
    return TokenBatch(tokens, offsets, encoded, refused=tuple(refused))


def is_panic(error: BaseException) -> bool:
    """Whether Rust panicked. The class of panics is not an Exception."""
    return type(error).__module__ == "pyo3_runtime"


class CannotEncodeError(Exception):
    """An encoder cannot encode with a vocabulary; the message says why."""


class Encoder(ABC):
    """Encodes each text as a document: `[EOT] + encode_ordinary(text)`.

    The output of the tokenizer's own library is the definition of correct. For tiktoken that is
    `encode_ordinary`: special tokens that occur literally in a text are ordinary text.

    name: the libraries in use and their versions, for messages.
    """

    name: str
    _correct: Encoder | None = None

    @property
    def reference(self) -> Encoder:
        """The encoder that defines what is correct; itself if there is no faster one."""
        return self._correct or self

    @abstractmethod
    def encode(self, texts: pa.Array) -> TokenBatch:
        """Encodes strings (large_string without nulls, shape (documents,)) as documents."""

    def encode_at(self, texts: pa.Array, file: int, rows: npt.NDArray[np.int64]) -> TokenBatch:
        """Encodes documents whose places in the input may count too.

        file: the position of their file in the input. rows: their row numbers, shape (documents,).
        """
        return self.encode(texts)

    @abstractmethod
    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        """Decodes tokens to text, without EOTs. Incomplete characters become U+FFFD."""

    def decode_all(
        self, tokens: npt.NDArray[np.uint32], offsets: npt.NDArray[np.integer]
    ) -> pa.Array:
        """Decodes documents, as `decode`, to large_string of shape (documents,).

        offsets: where each begins in the tokens, and where the last one ends.
        """
        texts = [self.decode(tokens[begin:end]) for begin, end in pairwise(offsets)]
        return pa.array(texts, pa.large_string())


class FastEncoder(Encoder):
    """An encoder that has the tokens of another one, its reference, which also decodes.

    Golden texts and a sample of the documents are compared. A subclass sets `name` and defines
    `encode`. vocabulary: a `Vocabulary` or a `TokenizerJson`; CannotEncodeError refuses it.
    """

    def __init__(self, vocabulary: Any, reference: Encoder) -> None:
        self._correct = reference

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return self.reference.decode(tokens)


class TokenEncoder(Encoder):
    """Puts the EOT before the tokens of each document, which are the bytes of uint32."""

    name = "token ids"

    def __init__(self, eot: int) -> None:
        self._eot = eot

    def encode(self, texts: pa.Array) -> TokenBatch:
        """Documents of token ids: large_binary without nulls, shape (documents,)."""
        _, borders, content = texts.buffers()
        ends = np.frombuffer(borders, np.int64)[texts.offset : texts.offset + len(texts) + 1] // 4
        offsets = ends - ends[0] + np.arange(len(ends))
        tokens = np.full(offsets[-1], self._eot, np.uint32)
        is_eot = np.zeros(len(tokens), np.bool_)
        is_eot[offsets[:-1]] = True
        tokens[~is_eot] = np.frombuffer(content or b"", "<u4", ends[-1])[ends[0] :]
        return TokenBatch(tokens, offsets, by_reference=0)

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        """There is no text."""
        raise NotImplementedError
