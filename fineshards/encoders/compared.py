"""Encoding with a sample compared: some documents are encoded by the reference as well."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.errors import FineshardsError
from fineshards.shards.hash_sample import sampled
from fineshards.shards.records import SourceFile

# One document in a thousand is encoded by the reference as well: at a tenth of the speed that
# costs a hundredth of the time, and a fault that hits one document in 10,000 is found, with a
# probability of 99.99 %, within the first hundred million.
COMPARED_SHARE = 1 / 1000


def encode_compared(
    encoder: Encoder, texts: pa.Array, file: SourceFile, rows: npt.NDArray[np.int64]
) -> tuple[TokenBatch, int]:
    """The tokens of texts, and how many of the documents were compared with the reference.

    texts: large_string without nulls, shape (n,). file, rows: where they come from; rows is int64,
    shape (n,), and decides with the file which documents are compared. Raises FineshardsError that
    names the first document whose tokens differ.
    """
    encoded = encoder.encode(texts)
    if encoder.reference is encoder:
        return encoded, 0
    places = np.flatnonzero(sampled(rows, COMPARED_SHARE, salt=file.index))
    if not places.size:
        return encoded, 0
    expected = encoder.reference.encode(texts.take(pa.array(places)))
    for number, place in enumerate(places.tolist()):
        if not np.array_equal(encoded.document(place), expected.document(number)):
            raise FineshardsError(
                f"{file.path}, row {rows[place]}: {encoder.name} makes "
                f"{len(encoded.document(place)) - 1} tokens of this document that differ from the "
                f"{len(expected.document(number)) - 1} of {encoder.reference.name}, which are the "
                "right ones. Please report the document; --tokenizer_engine "
                f"{encoder.reference.name.split()[0]} with --overwrite encodes all of them so."
            )
    return encoded, len(places)
