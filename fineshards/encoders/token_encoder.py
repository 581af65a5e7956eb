"""The encoder of documents that are tokens already."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import Encoder, TokenBatch


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
