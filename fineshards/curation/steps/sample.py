"""Keeps a share of the documents, chosen by a hash of the position.

datatrove's SamplerFilter draws from a sequence of random numbers, so what it keeps depends on the
number of tasks and on restarts. Here a document's place in the input alone decides:

    hash = XXH3_64bits_withSeed(FILE:ROW in decimal, (SEED + seed) modulo 2**64)
    kept if hash < floor(rate * 2**64)
"""

from dataclasses import dataclass

import numpy as np
import xxhash

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Seed, Share
from fineshards.curation.step import Judge, Outcome
from fineshards.shards.split_hash import row_keys

# The bytes of "fs-sampl". The sample is independent of the split, which hashes the same keys.
SEED = 0x66732D73616D706C


@dataclass(frozen=True)
class Sample(Judge, name="sample"):
    """Keeps about `rate` of all documents: the same ones in every run, however the job is cut.

    Of two samples with one seed the smaller is a part of the larger.

    Args:
        rate: The share to keep, from 0 to 1.
        seed: Another seed draws another sample. From 0 to 2**64 - 1.

    Example:
        >>> Sample(rate=0.5).apply(Batch.of_texts(["a", "b", "c", "d"])).reasons
        ['sample', 'sample', 'sample', None]
    """

    rate: Share = 0.5
    seed: Seed = 0

    def apply(self, batch: Batch) -> Outcome:
        # Multiplying by a power of two is exact, and so is the floor.
        limit = int(self.rate * 2.0**64)
        seed = (SEED + self.seed) % (1 << 64)
        keys = row_keys(np.full(len(batch), batch.file), batch.rows)
        hashes = (xxhash.xxh3_64_intdigest(key, seed) for key in keys)
        return Outcome([None if hash_ < limit else "sample" for hash_ in hashes])
