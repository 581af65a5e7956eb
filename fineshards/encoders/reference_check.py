"""Encodes documents and compares a sample of them with the reference encoder."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.errors import FineshardsError
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.hash_sample import sampled

# The share of documents that the reference encodes too. The reference is about ten times slower,
# so this adds 1 % to the time. A fault in one document of 10,000 is found with a probability of
# 99.99 % within the first hundred million documents.
COMPARED_SHARE = 1 / 1000


def encode_compared(
    encoder: Encoder, texts: pa.Array, file: SourceFile, rows: npt.NDArray[np.int64]
) -> tuple[TokenBatch, int]:
    """Encodes texts; also returns how many of the documents were compared with the reference.

    texts: large_string without nulls, shape (n,). file, rows: the texts' source file and row
    numbers, int64, shape (n,); they determine which documents are compared. Raises FineshardsError
    for the first document whose tokens differ.
    """
    encoded = encoder.encode_at(texts, file.index, rows)
    if encoder.reference is encoder:
        return encoded, 0
    places = np.flatnonzero(sampled(rows, COMPARED_SHARE, salt=file.index))
    if not places.size:
        return encoded, 0
    expected = encoder.reference.encode_at(texts.take(pa.array(places)), file.index, rows[places])
    for number, place in enumerate(places.tolist()):
        is_same = np.array_equal(encoded.document(place), expected.document(number))
        if encoded.learned is not None and expected.learned is not None:
            is_same &= encoded.learned[place].equals(expected.learned[number])
        if not is_same:
            raise FineshardsError(
                f"{file.path}, row {rows[place]}: {encoder.name} encodes this document to "
                f"{len(encoded.document(place)) - 1} tokens that differ from the correct "
                f"{len(expected.document(number)) - 1} tokens of {encoder.reference.name}. Please "
                "report the document. To encode all documents with the reference, run again with "
                f"--tokenizer_engine {encoder.reference.name.split()[0]} --overwrite."
            )
    return encoded, len(places)
