"""The reference encoder: tiktoken, document by document."""

from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import regex

from fineshards.encoders.encoder import Encoder, TokenBatch, reference_batch
from fineshards.encoders.vocabulary import Vocabulary

# tiktoken 0.14 splits text with a regular expression engine that panics when its stack exceeds a
# million entries, for example on a million spaces before a letter (tiktoken issues 15 and 245). The
# panic is not an Exception, and Rust prints a stack trace first, so such texts must never reach it.
# No pattern of tiktoken pushes more than two entries per character.
PIECEWISE_CHARACTERS = 400_000


class TiktokenEncoder(Encoder):
    """Encodes with tiktoken. Threads can share one: the library releases the interpreter lock."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encoding = vocabulary.encoding()
        self._pattern = regex.compile(vocabulary.pattern)
        self._eot = np.array([vocabulary.eot], dtype=np.uint32)
        self.name = f"tiktoken {version('tiktoken')}"

    def encode(self, texts: pa.Array) -> TokenBatch:
        return reference_batch(map(self._encode_text, texts.to_pylist()), self._eot)

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        ordinary = tokens[tokens != self._eot[0]]
        return self._encoding.decode(ordinary.tolist())

    def decode_all(
        self, tokens: npt.NDArray[np.uint32], offsets: npt.NDArray[np.integer]
    ) -> pa.Array:
        """See Encoder. Arrow joins the bytes of the tokens, without an object per token."""
        _, ends, joined = self._token_bytes.take(pa.array(tokens)).buffers()
        edges = np.frombuffer(ends, np.int64)[offsets]
        texts = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(edges), joined)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:  # Tokens that end within a character.
            return super().decode_all(tokens, offsets)
        return texts

    @cached_property
    def _token_bytes(self) -> pa.Array:
        """The bytes of each token: large_binary, shape (tokens,). Empty for the EOT and holes."""
        encoding = self._encoding
        names = {*encoding.token_byte_values(), *map(str.encode, encoding.special_tokens_set)}
        found = {encoding.encode_single_token(name): name for name in names} | {self._eot[0]: b""}
        return pa.array([found.get(n, b"") for n in range(encoding.n_vocab)], pa.large_binary())

    def _encode_text(self, text: str) -> npt.NDArray[np.uint32]:
        if len(text) < PIECEWISE_CHARACTERS:
            # The same tokens as encode_ordinary for every valid string, without creating a list.
            tokens: npt.NDArray[np.uint32] = self._encoding.encode_to_numpy(
                text, disallowed_special=()
            )
            return tokens
        return np.fromiter(self._encode_piecewise(text), dtype=np.uint32)

    def _encode_piecewise(self, text: str) -> Iterator[int]:
        """Encodes like encode_ordinary, but splits with the `regex` module instead of tiktoken.

        Both use the same pattern. Tests compare them on every code point and on all sample text.
        """
        for piece in self._pattern.finditer(text):
            yield from self._encoding._core_bpe.encode_single_piece(piece.group().encode())
