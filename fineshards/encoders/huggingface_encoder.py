"""The reference encoder of a tokenizer.json: Hugging Face's `tokenizers`."""

from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tokenizers

from fineshards.encoders.encoder import Encoder, TokenBatch, reference_batch
from fineshards.encoders.tokenizer_json import TokenizerJson

# Enough to make calls cheap. Not more, because the library's objects are many times larger than
# their tokens.
_TEXTS_PER_CALL = 64


class HuggingFaceEncoder(Encoder):
    """Encodes with tokenizers. Threads can share one: the library releases the interpreter lock."""

    def __init__(self, tokenizer: TokenizerJson) -> None:
        self._library = tokenizer.library
        self._eot = np.array([tokenizer.eot], dtype=np.uint32)
        # Special tokens that no document may have inside. Unknown characters may be one.
        inside = {id_: text for text, id_ in tokenizer.special_tokens}
        if tokenizer.unknown != tokenizer.eot:
            inside.pop(tokenizer.unknown, None)
        self._refused = inside
        self._is_refused = np.zeros(tokenizer.size, np.bool_)
        self._is_refused[[*inside]] = True
        self.name = f"tokenizers {tokenizers.__version__}"

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`. A text that cannot be encoded is refused.

        Examples are a character without a token if there is no unknown token, and text that a
        word-level model encodes as a special token.
        """
        starts = range(0, len(texts), _TEXTS_PER_CALL)
        calls = (texts.slice(start, _TEXTS_PER_CALL).to_pylist() for start in starts)
        return reference_batch(chain.from_iterable(map(self._encode_texts, calls)), self._eot)

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        ordinary = tokens[tokens != self._eot[0]]
        # Of others, only the unknown token can be there. It stands for text.
        text: str = self._library.decode(ordinary.tolist(), skip_special_tokens=False)
        return text

    def _encode_texts(self, texts: list[str]) -> list[npt.NDArray[np.uint32] | str]:
        """The tokens of texts, or why they are refused."""
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Rust panics are not Exceptions.
        except BaseException as error:
            if len(texts) == 1:
                return [f"{self.name} cannot encode it ({error})"]
            return [document for text in texts for document in self._encode_texts([text])]
        return [self._checked(np.array(encoding.ids, np.uint32)) for encoding in encodings]

    def _checked(self, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32] | str:
        special = tokens[self._is_refused[tokens]]
        if not special.size:
            return tokens
        return f"the tokenizer encodes part of it as the special token {self._refused[special[0]]}"
