"""Checks of encoders against their references, in every job.

Golden texts show whether two encoders, or two versions of a library, agree: their tokens are hashed
at launch, the hash is part of the job's fingerprint, and every worker checks it before it starts.
A sample of the documents is encoded by both.
"""

import hashlib

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

GOLDEN_TEXTS = (
    "",
    " ",
    "Hello, world! It's 2026-11-21, 12:34:56.",
    "I'LL, we'VE, they'd; Big'Small don'TEST ſ'S K'ELVIN",
    "1234567 12 345\t678\r\n\r\n  indented\n\n\n    more   ",
    "<|endoftext|> and <|fim_prefix|> stand here as text",
    "def f(x):\n\treturn {'a': [1, 2.5e-3], \"b\": x != 0}  # ok\n",
    "Ünïcödé naïve café cafe\u0301 ﬁ ﷽ \ufeffbom \u00a0nbsp\u200bzw \u2028ls",
    "中文分词测试。日本語のテキスト、한국어 문장, ไทย, हिन्दी में, עברית, العربية",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ❤️ 𝕳𝖊𝖑𝖑𝖔 𐍈 \U000323b0 \u088f",
    "\x00\x01\x7f\u0085 \x1c",
    "a" * 1000 + " " * 1000 + "\n" * 100 + "中" * 300 + "x",
)


def golden_sha256(encoder: Encoder) -> str:
    """SHA-256 (hex) of the golden texts' tokens (little-endian uint32) and offsets (int64)."""
    batch = encoder.encode(pa.array(GOLDEN_TEXTS, pa.large_string()))
    digest = hashlib.sha256(batch.tokens.astype("<u4").tobytes())
    digest.update(batch.offsets.astype("<i8").tobytes())
    return digest.hexdigest()


def encode_compared(
    encoder: Encoder, texts: pa.Array, file: SourceFile, rows: npt.NDArray[np.int64]
) -> tuple[TokenBatch, int]:
    """Encodes texts; also returns how many of the documents were compared with the reference.

    texts: large_string without nulls, shape (n,). file, rows: the texts' source file and row
    numbers, int64, shape (n,); they determine which documents are compared. Raises FineshardsError
    for the first document whose tokens differ.
    """
    encoded = encoder.encode_at(texts, file.index, rows)
    places = np.flatnonzero(sampled(rows, COMPARED_SHARE, salt=file.index))
    if encoder.reference is encoder or not places.size:
        return encoded, 0
    expected = encoder.reference.encode_at(texts.take(pa.array(places)), file.index, rows[places])
    for number, place in enumerate(places.tolist()):
        is_same = np.array_equal(encoded.document(place), expected.document(number))
        if encoded.learned is not None and expected.learned is not None:
            is_same &= encoded.learned[place].equals(expected.learned[number])
        if not is_same:
            raise FineshardsError(
                f"{file.path}, row {rows[place]}: {encoder.name} encodes this document to "
                f"{len(encoded.document(place)[1:])} tokens that differ from the correct "
                f"{len(expected.document(number)[1:])} tokens of {encoder.reference.name}. Please "
                "report the document. To encode all documents with the reference, run again with "
                f"--tokenizer_engine {encoder.reference.name.split()[0]} --overwrite."
            )
    return encoded, len(places)
