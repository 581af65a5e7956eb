"""The encoder of an import: its documents are tokens already."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.encoders.loading import load_encoder, load_reference
from fineshards.shards.job.settings import Settings
from fineshards.storage.base import Storage


def encoder_of(settings: Settings, storage: Storage, engine: str | None = None) -> Encoder:
    """The encoder that makes a dataset's documents of what its sources hold.

    engine: the library that encodes text; None for the one that defines what is correct.
    """
    if settings.columns.imported is not None:
        return TakenTokens(settings, storage)
    if engine is None:
        return load_reference(settings.tokenizer, storage)
    return load_encoder(settings.tokenizer, storage, engine)


class TakenTokens(Encoder):
    """Takes the tokens of documents as `formats/token_rows.py` has them, and puts EOTs before."""

    name = "the tokens of the source"

    def __init__(self, settings: Settings, storage: Storage) -> None:
        self._settings, self._storage = settings, storage

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See Encoder; of large_binary, the bytes of a document's uint32 tokens without EOT."""
        _, borders, content = texts.buffers()
        places = np.frombuffer(borders, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        inner = np.frombuffer(content or b"", "<u4")[places[0] // 4 : places[-1] // 4]
        offsets = (places - places[0]) // 4 + np.arange(len(places))
        tokens = np.empty(len(inner) + len(texts), np.uint32)
        is_eot = np.zeros(len(tokens), np.bool_)
        is_eot[offsets[:-1]] = True
        tokens[is_eot] = self._settings.tokenizer.eot
        tokens[~is_eot] = inner
        return TokenBatch(tokens, offsets, by_reference=0)

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return load_reference(self._settings.tokenizer, self._storage).decode(tokens)
