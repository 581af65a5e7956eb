"""The reference encoder of a tokenizer.json: Hugging Face's `tokenizers`."""

from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tokenizers

from fineshards.encoders.encoder import Encoder, TokenBatch, reference_batch
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.errors import FineshardsError

# Enough to make calls cheap. Not more, because the library's objects are many times larger than
# their tokens.
_TEXTS_PER_CALL = 64


class HuggingFaceEncoder(Encoder):
    """Encodes with tokenizers. Threads can share one: the library releases the interpreter lock."""

    def __init__(self, tokenizer: TokenizerJson) -> None:
        self._library = tokenizer.library
        self._eot = np.array([tokenizer.eot], dtype=np.uint32)
        self.name = f"tokenizers {tokenizers.__version__}"

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`. Raises FineshardsError for a text that cannot be encoded.

        Examples are a character without a token if there is no unknown token, and text that is
        encoded as the EOT.
        """
        starts = range(0, len(texts), _TEXTS_PER_CALL)
        calls = (texts.slice(start, _TEXTS_PER_CALL).to_pylist() for start in starts)
        return reference_batch(chain.from_iterable(map(self._encode_texts, calls)), self._eot)

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        ordinary = tokens[tokens != self._eot[0]]
        # Other special tokens occurred in the text, so they are kept.
        text: str = self._library.decode(ordinary.tolist(), skip_special_tokens=False)
        return text

    def _encode_texts(self, texts: list[str]) -> list[npt.NDArray[np.uint32]]:
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Rust panics are not Exceptions.
        except BaseException as error:
            raise FineshardsError(
                f"{self.name} cannot encode a document: {error}. Use a tokenizer that can encode "
                "this text."
            ) from error
        found = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        for text, ids in zip(texts, found, strict=True):
            if (ids == self._eot).any():
                raise FineshardsError(
                    "this tokenizer encodes part of a document as the EOT token, which must only "
                    f"begin documents: {text[:200]!r}. Choose another --eot_token, or remove the "
                    "document."
                )
        return found
