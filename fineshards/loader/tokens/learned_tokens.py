"""Which tokens of conversations are learned: the loss masks that lie beside the shards.

Masks are read as shards of bytes, so they are fetched, cached and checked as the tokens are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fineshards.loader.boundaries import Bools
from fineshards.loader.far.sizes import ReadingOrder
from fineshards.loader.sample_sources import Numbers
from fineshards.loader.tokens.shard_readers import Reading
from fineshards.loader.tokens.split_shards import SplitShards
from fineshards.loader.tokens.token_stream import TokenStream


class LearnedTokens:
    """The learned bits of a split's tokens. Threads can share it; it can be pickled."""

    def __init__(self, split: SplitShards, length: int, reading: Reading) -> None:
        self._shard_tokens = split.layout.shard_tokens
        # Bits behind the last token of a full shard.
        self._gap = -self._shard_tokens % 8
        masks = split.of_masks()
        self._all_bytes = masks.tokens
        # The sizes are those that fit the masks, not the shards.
        sizes = replace(reading, read_bytes=None, cache_bytes=None)
        self._stream = TokenStream(masks, 0, -(-length // 8) + 1, sizes)
        self._used = False

    def of(self, starts: Numbers, length: int) -> Bools:
        """Whether `length` tokens from each start on are learned: bool, shape (n, length)."""
        self._used = True
        firsts, count = self._bytes(starts, length)
        packed = np.empty((len(starts), count), np.uint8)
        self._stream.fill(packed, range(len(starts)), firsts.tolist())
        tokens = starts[:, np.newaxis] + np.arange(length)
        places = tokens + tokens // self._shard_tokens * self._gap - 8 * firsts[:, np.newaxis]
        bits = np.unpackbits(packed, axis=1, bitorder="little").view(np.bool_)
        return np.take_along_axis(bits, places, axis=1)

    def request(self, starts: Numbers, length: int) -> None:
        """Asks far storage for the bits of tokens from each start on, once any were needed."""
        if self._used:
            firsts, count = self._bytes(starts, length)
            self._stream.request(firsts.tolist(), count)

    def expect(self, order: ReadingOrder) -> None:
        """Reads for an order from now on."""
        self._stream.expect(order)

    def close(self) -> None:
        """Closes all files. The next use reopens them."""
        self._stream.close()

    def _bytes(self, starts: Numbers, length: int) -> tuple[Numbers, int]:
        """The byte with the bit of each start, and how many bytes have all bits of each."""
        crossed = (length // self._shard_tokens + 1) * self._gap
        count = min(-(-(length + 7 + crossed) // 8), self._all_bytes)
        firsts = (starts + starts // self._shard_tokens * self._gap) // 8
        return np.minimum(firsts, self._all_bytes - count), count
