"""Block summaries of a synthetic dataset: counts of any size, and no text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fineshards.shards.counts import BlockSummary, Counts, LabelCount, Sums

# About as in FineWeb.
DOCUMENT_TOKENS = 650
TOKEN_BYTES = 4.4
CRAWLS = 100
# One document in so many is test.
TEST_DIVISOR = 100


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dataset. Files have equally many blocks, but blocks differ in tokens."""

    tokens: int
    blocks: int
    files: int
    shard_tokens: int

    def shrunk(self, factor: int) -> Size:
        """1/`factor` of the tokens, blocks and files; at least one of each."""
        return Size(
            max(self.tokens // factor, 1),
            max(self.blocks // factor, 1),
            max(self.files // factor, 1),
            self.shard_tokens,
        )


FINEWEB = Size(tokens=15_000_000_000_000, blocks=1_000_000, files=50_000, shard_tokens=100_000_000)


@lru_cache(maxsize=1)
def block_borders(size: Size) -> npt.NDArray[np.int64]:
    """The offset of each block in the stream: int64, shape (blocks + 1,), from 0 to `tokens`.

    The longest block has three times the tokens of the shortest. Deterministic for a size.
    """
    ends = np.cumsum(np.random.default_rng(0).uniform(0.5, 1.5, size.blocks))
    borders = np.zeros(size.blocks + 1, dtype=np.int64)
    borders[1:] = np.rint(ends / ends[-1] * size.tokens)
    return borders


def file_summaries(size: Size, file: int) -> list[BlockSummary]:
    """A file's summaries, last block first, since a shuffle does not keep their order."""
    first, stop = (number * size.blocks // size.files for number in (file, file + 1))
    tokens = np.diff(block_borders(size)[first : stop + 1]).tolist()
    return [_summary(file, index, stop - first, tokens[index]) for index in range(stop - first)][
        ::-1
    ]


def _summary(file: int, index: int, blocks: int, tokens: int) -> BlockSummary:
    documents = -(-tokens // DOCUMENT_TOKENS)
    labels = (
        LabelCount("dump", f"CC-MAIN-{file % CRAWLS:02d}", documents, tokens),
        LabelCount("language", "en", documents, tokens),
    )
    counts = Counts(
        rows=documents,
        documents=documents,
        tokens=tokens,
        text_bytes=int(tokens * TOKEN_BYTES),
        labels=labels,
    )
    test = Sums(documents // TEST_DIVISOR, tokens // TEST_DIVISOR)
    return BlockSummary(file, index, blocks, counts, test)
