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

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from fineshards.encoders.encoder import Encoder, TokenBatch
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
        chosen = np.array([_draw(key, 0) < self._rate for key in keys], np.bool_)
        chosen &= pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
        if not chosen.any():
            return self.encode(texts)
        whole = self.encode(texts.filter(pa.array(~chosen)))
        places = np.flatnonzero(chosen).tolist()
        cut = [part for place in places for part in _cut(texts[place].as_py(), keys[place])]
        parts = self.encode(pa.array(cut, pa.large_string()))
        documents, ordered = iter(range(len(rows) - len(places))), iter(range(len(places)))
        found = [
            self._arranged(parts, 3 * next(ordered), keys[place])
            if is_chosen
            else whole.document(next(documents))
            for place, is_chosen in enumerate(chosen)
        ]
        unchanged = np.flatnonzero(~chosen).tolist()
        refused = {unchanged[index]: reason for index, reason in whole.refused}
        refused |= {places[index // 3]: reason for index, reason in parts.refused}
        found = [tokens[:0] if place in refused else tokens for place, tokens in enumerate(found)]
        return TokenBatch(
            np.concatenate(found),
            np.cumsum([0, *map(len, found)], dtype=np.int64),
            whole.by_reference + min(parts.by_reference, len(places)),
            refused=tuple(sorted(refused.items())),
        )

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        return self._encoder.decode(tokens)

    def _arranged(self, parts: TokenBatch, first: int, key: bytes) -> npt.NDArray[np.uint32]:
        """The tokens of a document, EOT first, whose three parts begin with number `first`."""
        before, middle, after = (parts.document(first + number) for number in range(3))
        eot, before, middle, after = before[:1], before[1:], middle[1:], after[1:]
        rule = self._rule
        if _draw(key, 1) < self._spm_rate:
            order = [[rule.prefix, rule.suffix], after, [rule.middle], before, middle]
        else:
            order = [[rule.prefix], before, [rule.suffix], after, [rule.middle], middle]
        return np.concatenate([eot, *(np.array(each, np.uint32) for each in order)])


def _draw(key: bytes, number: int) -> int:
    return xxhash.xxh3_64_intdigest(key, SEED + number)


def _cut(text: str, key: bytes) -> tuple[str, str, str]:
    """The prefix, the middle and the suffix of a text; each may be empty."""
    begin, end = sorted(_draw(key, number) * (len(text) + 1) >> 64 for number in (2, 3))
    return text[:begin], text[begin:end], text[end:]
