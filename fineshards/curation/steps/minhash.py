"""Nearly the same text, by MinHash.

Two documents may be near duplicates if they share a band key. With the defaults, 92 of 100 pairs do
that share 80 % of their 5-grams, and 5 of 100 that share half. The keys of a document, to the bit;
all numbers are 64-bit, and arithmetic is modulo 2^64:

1. Its words are hashed by XXH3-64: in canonical decomposition, and in lower case unless a letter
   after the first is upper case and another one lower case. With `numbers = "alike"` they are those
   of its simplified text (see `simplify`).
2. Its shingles are its runs of `n_grams` words. With fewer words, but at least one, all its words
   are its only shingle. The hash of a shingle of k words w is the finalizer of SplitMix64 of
   k*B^k + w[0]*B^(k-1) + … + w[k-1], with B = 0x9E3779B97F4A7C15.
3. Its minimum number i is the smallest product of a shingle's hash and the multiplier i, which is
   the output i of SplitMix64 from `seed`, with the lowest bit set.
4. Its band key b is XXH3-64 with the seed b of the minima of the band, `hashes_per_bucket` of them
   from b*`hashes_per_bucket` on, little-endian.

The order of products is decided by their top bits, to which all bits of an odd multiplier and of a
hash contribute.

A shared key is a guess. With `verify`, two documents with one are compared by the sets of the
hashes of their shingles, a and b. Jaccard's similarity is |a and b| / |a or b|, containment
|a and b| / min(|a|, |b|), as 64-bit floats.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Seed, Share, Unless, check, whole
from fineshards.curation.step import Keyed, Keys
from fineshards.curation.steps.exact_duplicates import Within, columns_of, of_group
from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import U64, Numbers, Words
from fineshards.shards.tables.hash_sample import splitmix64
from fineshards.shards.tables.marks import MOST_CANDIDATES

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_BASE = np.uint64(_GOLDEN)
# Shingles whose products are made at once: 0.5 MB, which stays in the processor's cache.
_SHINGLES = 1 << 16
# Products per document are bounded: a mistake should not look like a job that hangs.
_MOST_HASHES = 10_000
_Number = Annotated[int, whole(1, 1000)]
_NotVerified = Unless(verify=("none",))


@dataclass(frozen=True)
class MinHash(Keyed, name="minhash"):
    """Drops a document that is nearly the same as an earlier one.

    A document with fewer than `n_grams` words is dropped only if an earlier one has the same words;
    one without words is kept. Each document is compared with the first `candidates` ones of each of
    its keys, and kept if it is like none of them.

    Args:
        n_grams: Words per shingle.
        buckets: Bands. More find more near duplicates, and drop more documents that are not.
        hashes_per_bucket: Minima per band. More find less of both.
        seed: Chooses the multipliers.
        words: What a word is. "space": what stands between spaces. "spacy": spaCy's English tokens,
            as datatrove has them; slow. "characters": each character, for languages without spaces.
        numbers: Which words have keys and are compared. "keep": those of the text, with numbers,
            punctuation, diacritics, and case within a word (pH). "alike": those of the simplified
            text, as in datatrove, where each number is 0 and none of the others counts.
        rule: "earlier": a document is dropped if an earlier one is nearly the same. "components":
            documents that are linked through others count as the same too, and the first one in
            the stream is kept.
        verify: How documents that share a key are compared before one is dropped. "jaccard": by the
            share of their shingles that both have. "containment": by the share of the smaller one's
            that the other one has, so the longer one may be dropped. "none": not, as in datatrove.
        threshold: The least share at which they count as the same.
        candidates: Earlier documents per key that a document is compared with.
        within: Which documents are compared with each other; see `exact`.

    Example:
        >>> batch = Batch.of_texts(["The same words!", "the same words", "…"])
        >>> keys = MinHash(buckets=3, numbers="alike").keys(batch)
        >>> keys.owners.tolist(), bool((keys.keys[:3] == keys.keys[3:]).all())
        ([0, 0, 0, 1, 1, 1], True)
    """

    VERSION: ClassVar[int] = 2

    n_grams: _Number = 5
    buckets: _Number = 14
    hashes_per_bucket: _Number = 8
    seed: Seed = 1
    words: Words = "space"
    numbers: Numbers = "keep"
    rule: Literal["earlier", "components"] = "earlier"
    verify: Literal["jaccard", "containment", "none"] = "jaccard"
    threshold: Annotated[Share, _NotVerified] = 0.8
    candidates: Annotated[int, whole(1, MOST_CANDIDATES), _NotVerified] = 2
    within: Within = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.buckets * self.hashes_per_bucket <= _MOST_HASHES
        most = f"at most {_MOST_HASHES // self.hashes_per_bucket:,}"
        together = f"{most} with hashes_per_bucket = {self.hashes_per_bucket}"
        check(self.NAME, "buckets", self.buckets, fits, together)

    @property
    def key_bits(self) -> int:
        return 64

    @property
    def columns(self) -> tuple[str, ...]:
        return columns_of(self.within)

    def pins(self) -> dict[str, str]:
        return normal_form.pins(self.words)

    def keys(self, batch: Batch) -> Keys:
        shingles, bounds, owners = self._shingles(batch)
        keys = band_keys(minima(shingles, bounds, self._multipliers), self.buckets)
        owners = np.repeat(owners, self.buckets)
        return Keys(of_group(keys, owners, batch, self.within), owners)

    @property
    def compared(self) -> int:
        return 0 if self.verify == "none" else self.candidates

    def contents(self, batch: Batch) -> list[U64]:
        shingles, bounds, owners = self._shingles(batch)
        contents = [np.empty(0, np.uint64)] * len(batch)
        for owner, (begin, end) in zip(owners.tolist(), pairwise(bounds.tolist()), strict=True):
            contents[owner] = np.unique(shingles[begin:end])
        return contents

    def similarity(self, one: U64, other: U64) -> float:
        if len(one) == len(other) and np.array_equal(one, other):
            return 1.0
        small, large = sorted((one, other), key=len)
        places = np.minimum(np.searchsorted(large, small), len(large) - 1)
        both = np.count_nonzero(large[places] == small)
        of = len(small) if self.verify == "containment" else len(small) + len(large) - both
        return both / of

    def _shingles(self, batch: Batch) -> tuple[U64, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `shingle_hashes`, of the documents with words, and their numbers."""
        documents = normal_form.batch_hashes(batch, self.words, self.numbers)
        hashes, sizes = normal_form.joined(documents)
        owners = np.flatnonzero(sizes)
        return *shingle_hashes(hashes, sizes[owners], self.n_grams), owners

    @cached_property
    def _multipliers(self) -> U64:
        return multipliers(self.seed, self.buckets * self.hashes_per_bucket)


def multipliers(seed: int, count: int) -> U64:
    """Outputs of SplitMix64, with the lowest bit set."""
    states = np.uint64(seed) + np.arange(count, dtype=np.uint64) * _BASE
    return splitmix64(states) | np.uint64(1)


def shingle_hashes(
    words: U64, sizes: npt.NDArray[np.int64], n: int
) -> tuple[U64, npt.NDArray[np.int64]]:
    """The hashes of all shingles of n words, and the first of each of d documents, and the end.

    words: the hashes of the words of all documents. sizes: words of each document, at least 1.
    """
    bounds = np.concatenate([[0], np.cumsum(np.maximum(sizes - n + 1, 1))])
    ends = np.cumsum(sizes)
    # The shingle that begins at each word, first as if there were no documents.
    numbers = normal_form.ngram_numbers(words, n, _BASE, n)
    # Those of the last n - 1 words of a document go on in the next one.
    within = np.arange(len(words)) <= np.repeat(ends - n, sizes)
    short = sizes < n
    within[(ends - sizes)[short]] = True
    for end, size in zip(ends[short].tolist(), sizes[short].tolist(), strict=True):
        total = size
        for word in words[end - size : end].tolist():
            total = (total * _GOLDEN + word) & _MASK
        numbers[end - size] = total
    # SplitMix64 adds what is subtracted here before its finalizer.
    return splitmix64(numbers[within] - _BASE), bounds


def minima(shingles: U64, bounds: npt.NDArray[np.int64], multipliers: U64) -> U64:
    """The minima of each of d documents for m multipliers, shape (d, m).

    shingles, bounds: as of `shingle_hashes`; each document has a shingle.
    """
    smallest = np.empty((len(bounds) - 1, len(multipliers)), np.uint64)
    begins = np.arange(0, len(shingles), _SHINGLES)
    first = np.unique(np.searchsorted(bounds, begins, side="right") - 1).tolist()
    for begin, end in pairwise([*first, len(smallest)]):
        these = shingles[bounds[begin] : bounds[end]]
        products, documents = np.empty_like(these), bounds[begin:end] - bounds[begin]
        for number, multiplier in enumerate(multipliers):
            np.multiply(these, multiplier, out=products)
            np.minimum.reduceat(products, documents, out=smallest[begin:end, number])
    return smallest


def band_keys(minima: U64, buckets: int) -> U64:
    """The keys of documents, shape (d * buckets,), all of one document before those of the next.

    minima: shape (d, m), m a multiple of `buckets`.
    """
    size = 8 * minima.shape[1] // buckets
    data = memoryview(minima.astype("<u8", copy=False).tobytes())
    count = len(minima) * buckets
    keys = (
        xxh3_64_intdigest(data[number * size : (number + 1) * size], number % buckets)
        for number in range(count)
    )
    return np.fromiter(keys, np.uint64, count)
