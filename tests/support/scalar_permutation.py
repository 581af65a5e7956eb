"""The keyed permutation in plain Python by its definition; shares no code with the loader."""

import hashlib
from collections.abc import Iterator

from fineshards.loader.permutation import TABLE_MAXIMUM

WORD = (1 << 64) - 1


def scalar_key(*parts: int | str) -> int:
    content = b""
    for part in parts:
        text = b"s" + part.encode() if isinstance(part, str) else b"i" + hex(part).encode()
        content += len(text).to_bytes(8, "little") + text
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def scalar_hash(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


class ScalarPermutation:
    """The definition of the permutation, one number at a time, and its inverse."""

    def __init__(self, n: int, key: int) -> None:
        self.n = n
        start = scalar_hash(key)
        self.table: list[int] = []
        if n <= TABLE_MAXIMUM:
            self.table = sorted(range(n), key=lambda i: scalar_hash(scalar_hash(i) ^ start))
        width = (n - 1).bit_length()
        self.left_width = width // 2
        self.right_width = width - self.left_width
        self.round_keys = [scalar_hash((start + i) & WORD) for i in range(10)]

    def forward(self, number: int) -> int:
        if self.table:
            return self.table[number]
        while True:
            number = self._encrypt(number, range(10))
            if number < self.n:
                return number

    def backward(self, number: int) -> int:
        if self.table:
            return self.table.index(number)
        while True:
            number = self._encrypt(number, reversed(range(10)))
            if number < self.n:
                return number

    def _encrypt(self, number: int, rounds: range | Iterator[int]) -> int:
        left = number >> self.right_width
        right = number & ((1 << self.right_width) - 1)
        for i in rounds:
            if i % 2 == 0:
                left ^= scalar_hash(right ^ self.round_keys[i]) & ((1 << self.left_width) - 1)
            else:
                right ^= scalar_hash(left ^ self.round_keys[i]) & ((1 << self.right_width) - 1)
        return left << self.right_width | right
