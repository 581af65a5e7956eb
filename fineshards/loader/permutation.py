"""Shuffling without a table: a keyed permutation of range(n), computed for each index on its own.

Up to `TABLE_MAXIMUM` numbers, the permutation is the order of their hashes. Above that, it is a
Feistel network (Luby and Rackoff 1988) over the smallest power of two that holds n, with cycle
walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): a result of n or more is
encrypted again, which happens less than once on average. The rounds change the network's two halves
alternately and in place. So the halves need not be equal, and odd widths need no special case.

numpy's random generators are not used: their streams may change between versions.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.shards.tables.hash_sample import splitmix64

# Changes when any permutation changes, so that a saved state never resumes in another order.
ALGORITHM_VERSION = 1

# Up to this size a network's halves are too narrow for its permutations to look random.
TABLE_MAXIMUM = 1 << 12
# In theory, four rounds of a random function suffice for far more numbers than are ever drawn. With
# narrow halves and fewer than six or seven rounds, tests of pairs still detect a difference.
ROUNDS = 10
# Numbers processed together, so that they stay in the processor's cache.
_CHUNK = 1 << 13

Numbers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


def key(seed: int, *purpose: int | str) -> int:
    """A 64-bit key from a seed, of any sign and size, and the key's purpose.

    Every argument is hashed with its type and length, so that (0, 1) and (1, 0), or ("ab", "c") and
    ("a", "bc"), give unrelated keys.
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
    """A bijection of range(n), 0 <= n < 2**63, that depends only on `n` and `key` (64 bits)."""

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
        self._right_width = width - width // 2
        self._left_mask = (1 << width // 2) - 1
        self._round_keys = splitmix64(np.arange(ROUNDS, dtype=np.uint64) + start)

    def __call__(self, positions: Numbers) -> Numbers:
        """The images of positions (int64, in range(n)); raises IndexError for other positions."""
        if len(positions) and (positions.min() < 0 or positions.max() >= self.n):
            raise IndexError(f"positions out of range({self.n})")
        return permute([(self, positions)])

    def inverse(self, images: Numbers) -> Numbers:
        """The positions whose images are these (int64, in range(n)); IndexError for others."""
        if len(images) and (images.min() < 0 or images.max() >= self.n):
            raise IndexError(f"images out of range({self.n})")
        if self._table is not None:
            return np.argsort(self._table)[images]
        numbers = images.astype(np.uint64)
        # The same rounds from the last to the first: each half is changed by the other one alone.
        _walk(numbers, _networks([self]), range(ROUNDS)[::-1])
        return numbers.astype(np.int64)


def permute(parts: Sequence[tuple[Permutation, Numbers]]) -> Numbers:
    """The images of positions in range(n) under permutations, one part after the other.

    Networks are computed together: vectorised code takes nearly as long for a hundred numbers as
    for a thousand.
    """
    images = np.concatenate(
        [at if order._table is None else order._table[at] for order, at in parts], dtype=np.int64
    )
    by_network = [(order, len(at)) for order, at in parts if order._table is None]
    if not by_network:
        return images
    networks, counts = zip(*by_network, strict=True)
    every, which = _networks(networks), np.repeat(np.arange(len(networks)), counts)
    where = np.flatnonzero(
        np.repeat([order._table is None for order, _ in parts], [len(at) for _, at in parts])
    )
    for at in range(0, len(where), _CHUNK):
        chunk = where[at : at + _CHUNK]
        numbers = images[chunk].astype(np.uint64)
        _walk(numbers, every.at(which[at : at + _CHUNK]), range(ROUNDS))
        images[chunk] = numbers
    return images


class _Networks(NamedTuple):
    """The networks of numbers, or a single one for all: uint64, shape (..., numbers or 1)."""

    limit: _Words
    right_width: _Words
    right_mask: _Words
    left_mask: _Words
    round_keys: _Words

    def at(self, numbers: Numbers) -> _Networks:
        if len(self.limit) == 1:
            return self
        return _Networks(*[values[..., numbers] for values in self])


def _networks(permutations: Sequence[Permutation]) -> _Networks:
    widths = np.array([order._right_width for order in permutations], np.uint64)
    return _Networks(
        np.array([order.n for order in permutations], np.uint64),
        widths,
        (np.uint64(1) << widths) - np.uint64(1),
        np.array([order._left_mask for order in permutations], np.uint64),
        np.stack([order._round_keys for order in permutations], axis=-1),
    )


def _walk(numbers: _Words, networks: _Networks, rounds: range) -> None:
    """Encrypts numbers in place until each is below its limit."""
    _encrypt(numbers, networks, rounds)
    outside = np.flatnonzero(numbers >= networks.limit)
    while len(outside):
        again, used = numbers[outside], networks.at(outside)
        _encrypt(again, used, rounds)
        numbers[outside] = again
        outside = outside[again >= used.limit]


def _encrypt(numbers: _Words, networks: _Networks, rounds: range) -> None:
    left = numbers >> networks.right_width
    right = numbers & networks.right_mask
    for number in rounds:
        round_key = networks.round_keys[number]
        if number % 2 == 0:
            left ^= splitmix64(right ^ round_key) & networks.left_mask
        else:
            right ^= splitmix64(left ^ round_key) & networks.right_mask
    numbers[:] = (left << networks.right_width) | right
