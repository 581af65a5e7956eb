"""CRC-32C, the checksum of Cloud Storage: computed during a copy, combined for joined files.

https://cloud.google.com/storage/docs/data-validation
"""

import base64
import sys
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

# Small enough to stay in a core's cache between the read, the checksum and the write.
_COPY_BYTES = 1 << 20

# Castagnoli's polynomial and 1 = x^0, bits reflected: bit 31 is the coefficient of x^0.
_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def crc32c(content: bytes, before: int = 0) -> int:
    """The CRC-32C of bytes. before: that of what is before them."""
    checksum: int = google_crc32c.extend(before, content)
    return checksum


def crc32c_combine(first: int, second: int, length: int) -> int:
    """The checksum of two byte strings joined, from their checksums and the second's length.

    A checksum is a polynomial remainder. Appending `length` bytes multiplies the first one by
    x^(8 * length). zlib's crc32_combine (crc32.c: multmodp, x2nmodp) does the same with another
    polynomial.
    """
    shift, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            shift = _multiply(shift, square)
        square = _multiply(square, square)
        length >>= 1
    return _multiply(shift, first) ^ second


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo Castagnoli's polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def write_with_checksum(content: npt.NDArray[np.uint8], target: BinaryIO, checksum: int) -> int:
    """Writes bytes; returns the checksum of the target's whole content.

    checksum: that of the target before the write. Bytes are written in small chunks: writes of
    eight megabytes took the kernel more than twice as long.
    """
    for start in range(0, len(content), _COPY_BYTES):
        chunk = content[start : start + _COPY_BYTES]
        target.write(chunk.data)
        checksum = google_crc32c.extend(checksum, chunk)
    return checksum


def file_checksum(opened: BinaryIO, checksum: int = 0, size: int | None = None) -> int:
    """The checksum of a file from its current position on.

    checksum: that of what is before it. size: bytes to read; all by default.
    """
    buffer = np.empty(_COPY_BYTES, np.uint8)
    left = sys.maxsize if size is None else size
    while left and (count := opened.readinto(buffer[:left].data)):  # type: ignore[attr-defined]
        checksum = google_crc32c.extend(checksum, buffer[:count])
        left -= count
    return checksum


def checksum_to_base64(checksum: int) -> str:
    """A checksum as Cloud Storage writes it: base64 of its big-endian bytes."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def checksum_from_base64(text: str) -> int:
    """The inverse of `checksum_to_base64`."""
    return int.from_bytes(base64.b64decode(text), "big")
