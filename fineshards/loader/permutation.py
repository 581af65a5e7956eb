"""Shuffling without a table: a keyed permutation of range(n), computed for each index by itself.

Up to `TABLE_MAXIMUM` numbers, the permutation is the order of their hashes. Beyond, it is a
Feistel network (Luby and Rackoff 1988) over the smallest power of two that holds n, with cycle
walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): a number that comes out
at n or beyond goes in again, which happens less than once on average. The network's halves need
not be equal: the rounds change the two in turn, in place, so that odd widths need nothing special.

Nothing here comes from a random generator of numpy, whose streams may change between versions.
"""

from __future__ import annotations

import hashlib
import operator

import numpy as np
import numpy.typing as npt

from fineshards.shards.hash_sample import splitmix64

# Changes when any permutation does, so that a saved state is never continued in another order.
ALGORITHM_VERSION = 1

# Below this size a network's halves are so narrow that its permutations are not like random ones.
TABLE_MAXIMUM = 1 << 12
# Four rounds of a random function suffice in theory, for many more numbers than are ever drawn;
# with narrow halves and fewer than six or seven, tests of pairs still see a difference.
ROUNDS = 10
# Numbers that are worked on at once, so that they stay in the processor's cache.
_CHUNK = 1 << 15

Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


def key(seed: int, *purpose: int | str) -> int:
    """A 64-bit key from a seed, of any sign and size, and what it is for.

    Every argument is hashed with its type and length, so that (0, 1) and (1, 0), or ("ab", "c") and
    ("a", "bc"), have nothing in common.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *purpose):
        if isinstance(part, str):
            content = b"s" + part.encode("utf-8", "surrogatepass")
        else:
            content = b"i" + hex(operator.index(part)).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return int.from_bytes(digest.digest(), "little")


class Permutation:
    """A bijection of range(n), 0 <= n < 2**63, that depends on `n` and `key` (64 bits) alone."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        self._table: npt.NDArray[np.uint16] | None = None
        start = splitmix64(np.array([key], np.uint64))
        if n <= TABLE_MAXIMUM:
            # splitmix64 is a bijection, so no two hashes are equal.
            hashes = splitmix64(splitmix64(np.arange(n, dtype=np.uint64)) ^ start)
            self._table = np.argsort(hashes).astype(np.uint16)
            return
        width = (n - 1).bit_length()
        self._right_width = np.uint64(width - width // 2)
        self._left_mask = np.uint64((1 << width // 2) - 1)
        self._right_mask = np.uint64((1 << (width - width // 2)) - 1)
        self._round_keys = splitmix64(np.arange(ROUNDS, dtype=np.uint64) + start)

    def __call__(self, positions: Numbers) -> Numbers:
        """Where the positions, int64 in range(n), are sent; raises IndexError for any other."""
        if len(positions) and (positions.min() < 0 or positions.max() >= self.n):
            raise IndexError(f"positions outside of range({self.n})")
        if self._table is not None:
            return self._table[positions].astype(np.int64)
        sent = np.empty(len(positions), np.int64)
        for at in range(0, len(positions), _CHUNK):
            sent[at : at + _CHUNK] = self._walk(positions[at : at + _CHUNK].astype(np.uint64))
        return sent

    def _walk(self, numbers: _Words) -> _Words:
        numbers = self._encrypt(numbers)
        limit = np.uint64(self.n)
        outside = np.flatnonzero(numbers >= limit)
        while len(outside):
            again = self._encrypt(numbers[outside])
            numbers[outside] = again
            outside = outside[again >= limit]
        return numbers

    def _encrypt(self, numbers: _Words) -> _Words:
        left = numbers >> self._right_width
        right = numbers & self._right_mask
        for number, round_key in enumerate(self._round_keys):
            if number % 2 == 0:
                left ^= splitmix64(right ^ round_key) & self._left_mask
            else:
                right ^= splitmix64(left ^ round_key) & self._right_mask
        return (left << self._right_width) | right
