"""Fill in the middle: documents in an order that lets a model learn to insert text.

The rule is that of Megatron's GPTFIMDataset, of whole documents, by characters (code points), with
hashes in place of its random numbers:

    h0 to h3 = XXH3_64bits_withSeed(FILE:ROW in decimal, SEED + 0 to 3)
    a document is rearranged if it has characters and h0 < floor(rate * 2**64)
    its two cuts, in order, are h2 and h3, each * (characters + 1) >> 64
    SUFFIX first if h1 < floor(spm_rate * 2**64)

    PREFIX prefix SUFFIX suffix MIDDLE middle
    PREFIX SUFFIX suffix MIDDLE prefix middle       with the suffix first

PREFIX, SUFFIX and MIDDLE are special tokens; each part is encoded on its own.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from fineshards.encoders.encoder import Encoder, TokenBatch, joined
from fineshards.shards.job.settings import FillInMiddle
from fineshards.shards.split_hash import row_keys

# The bytes of "fs-infil". The choice is independent of others that hash the same keys.
SEED = 0x66732D696E66696C


class MiddleEncoder(Encoder):
    """Encodes documents at their places, some of them rearranged.

    Example:
        >>> from fineshards.encoders.loading import encoder_of_vocabulary
        >>> from fineshards.encoders.vocabulary import resolve_vocabulary
        >>> rule = FillInMiddle("1", "0", prefix=100258, middle=100259, suffix=100260)
        >>> encoder = MiddleEncoder(encoder_of_vocabulary(resolve_vocabulary("cl100k_base")), rule)
        >>> texts, rows = pa.array(["one two"], pa.large_string()), np.array([7])
        >>> encoder.decode(encoder.encode_at(texts, 0, rows).tokens)
        '<|fim_prefix|>o<|fim_suffix|>o<|fim_middle|>ne tw'
    """

    def __init__(self, encoder: Encoder, rule: FillInMiddle) -> None:
        self._encoder, self._rule = encoder, rule
        self._rate, self._spm_rate = (
            int(Fraction(rate) * 2**64) for rate in (rule.rate, rule.spm_rate)
        )
        self.name = encoder.name

    @property
    def reference(self) -> Encoder:
        if self._encoder.reference is self._encoder:
            return self
        return MiddleEncoder(self._encoder.reference, self._rule)

    def encode(self, texts: pa.Array) -> TokenBatch:
        return self._encoder.encode(texts)

    def encode_at(self, texts: pa.Array, file: int, rows: npt.NDArray[np.int64]) -> TokenBatch:
        keys = list(row_keys(np.full(len(rows), file), rows))
        parts: list[str] = []
        ends = []
        for text, key in zip(texts.to_pylist(), keys, strict=True):
            is_cut = text != "" and _draw(key, 0) < self._rate
            parts += _cut(text, key) if is_cut else [text]
            ends.append(len(parts))
        batch = self.encode(pa.array(parts, pa.large_string()))
        reasons = dict(batch.refused)
        documents: list[npt.NDArray[np.uint32] | str] = []
        for (begin, end), key in zip(pairwise([0, *ends]), keys, strict=True):
            refused = [reasons[part] for part in range(begin, end) if part in reasons]
            encoded = [batch.document(part) for part in range(begin, end)]
            arranged = self._arranged(encoded, key) if encoded[1:] else encoded[0]
            documents.append(refused[0] if refused else arranged)
        return joined(documents, batch.by_reference)

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return self._encoder.decode(tokens)

    def _arranged(
        self, parts: Sequence[npt.NDArray[np.uint32]], key: bytes
    ) -> npt.NDArray[np.uint32]:
        """The tokens of a document, EOT first, whose three parts have an EOT each."""
        eot, (before, middle, after) = parts[0][:1], (part[1:] for part in parts)
        rule = self._rule
        if _draw(key, 1) < self._spm_rate:
            order = [[rule.prefix, rule.suffix], after, [rule.middle], before, middle]
        else:
            order = [[rule.prefix], before, [rule.suffix], after, [rule.middle], middle]
        return np.concatenate([eot, *(np.array(part, np.uint32) for part in order)])


def _draw(key: bytes, number: int) -> int:
    return xxhash.xxh3_64_intdigest(key, SEED + number)


def _cut(text: str, key: bytes) -> tuple[str, str, str]:
    """The prefix, the middle and the suffix of a text; each may be empty."""
    begin, end = sorted(_draw(key, number) * (len(text) + 1) >> 64 for number in (2, 3))
    return text[:begin], text[begin:end], text[end:]
