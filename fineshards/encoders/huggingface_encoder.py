"""The reference encoder of a tokenizer.json: Hugging Face's `tokenizers`."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import TokenBatch
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.errors import FineshardsError

# Texts a call: enough to make calls cheap; the library's own objects take many times their tokens.
_TEXTS = 64


class HuggingFaceEncoder:
    """Encodes by tokenizers; threads may share one, as it releases the interpreter lock."""

    def __init__(self, tokenizer: TokenizerJson) -> None:
        self._library = tokenizer.library
        self._eot = np.array([tokenizer.eot], dtype=np.uint32)
        self.name = f"tokenizers {version('tokenizers')}"

    @property
    def reference(self) -> HuggingFaceEncoder:
        """See `Encoder.reference`."""
        return self

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`; raises FineshardsError for a text that the tokenizer cannot take.

        Such as a character without a token in a vocabulary without an unknown token, or the EOT.
        """
        parts = []
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        number = 0
        for start in range(0, len(texts), _TEXTS):
            for ids in self._encode_texts(texts.slice(start, _TEXTS).to_pylist()):
                parts += [self._eot, ids]
                number += 1
                offsets[number] = 1 + len(ids)
        np.cumsum(offsets, out=offsets)
        tokens = np.concatenate(parts) if parts else np.empty(0, np.uint32)
        return TokenBatch(tokens, offsets, by_reference=len(texts))

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        """See `Encoder.decode`."""
        ordinary = tokens[tokens != self._eot[0]]
        # Tokens that stood in the text are text, also where the tokenizer calls them special.
        text: str = self._library.decode(ordinary.tolist(), skip_special_tokens=False)
        return text

    def _encode_texts(self, texts: list[str]) -> list[npt.NDArray[np.uint32]]:
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Rust's panics are no Exceptions.
        except BaseException as error:
            raise FineshardsError(
                f"{self.name} cannot encode a document ({error}); the tokenizer does not fit "
                "this text."
            ) from error
        found = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        for text, ids in zip(texts, found, strict=True):
            if (ids == self._eot).any():
                raise FineshardsError(
                    f"the token that begins documents stands in one, as this tokenizer finds it in "
                    f"text: {text[:200]!r}. Name another --eot_token, or leave the document out."
                )
        return found
