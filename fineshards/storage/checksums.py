"""CRC-32C, the checksum of Cloud Storage: of a copy while it is made, and of files joined.

https://cloud.google.com/storage/docs/data-validation
"""

from __future__ import annotations

import base64
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

# Small enough to stay in a core's cache between the read, the checksum and the write.
_COPY_BYTES = 1 << 20

# Castagnoli's polynomial and 1 = x^0, bits reflected: bit 31 is the coefficient of x^0.
_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def crc32c(content: bytes) -> int:
    """The checksum of bytes."""
    checksum: int = google_crc32c.value(content)
    return checksum


def crc32c_combine(first: int, second: int, length: int) -> int:
    """The checksum of two runs of bytes joined, from theirs and the length of the second.

    A checksum is a remainder of polynomials, so a run that `length` bytes follow counts times
    x^(8 * length). The method is that of zlib's crc32_combine (crc32.c: multmodp, x2nmodp), with
    another polynomial.
    """
    shift, square = _ONE, _ONE >> 8
    while length:
        if length & 1:
            shift = _multiply(shift, square)
        square = _multiply(square, square)
        length >>= 1
    return _multiply(shift, first) ^ second


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo Castagnoli's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def copy_with_checksum(source: BinaryIO, size: int, target: BinaryIO, checksum: int) -> int:
    """Copies bytes; returns the checksum of all that is in the target by then.

    checksum: of what is there already. Raises EOFError, which says how much was missing, if the
    source ends early. Bytes go through one small buffer. `copy_file_range` would save nothing: a
    shard's header makes the ranges unaligned, so no file system can share them, and the checksum
    needs the bytes anyway.
    """
    buffer = np.empty(min(_COPY_BYTES, size), np.uint8)
    while size:
        count = source.readinto(buffer[:size].data)  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"ended {size} bytes early")
        target.write(buffer[:count].data)
        checksum = google_crc32c.extend(checksum, buffer[:count])
        size -= count
    return checksum


def write_with_checksum(content: npt.NDArray[np.uint8], target: BinaryIO, checksum: int) -> int:
    """Writes bytes; returns the checksum of all that is in the target by then.

    A little at a time: writes of eight megabytes took the kernel more than twice as long
    (docs/performance.md).
    """
    for start in range(0, len(content), _COPY_BYTES):
        part = content[start : start + _COPY_BYTES]
        target.write(part.data)
        checksum = google_crc32c.extend(checksum, part)
    return checksum


def file_checksum(opened: BinaryIO) -> int:
    """The checksum of the rest of a file."""
    checksum = 0
    buffer = np.empty(_COPY_BYTES, np.uint8)
    while size := opened.readinto(buffer.data):  # type: ignore[attr-defined]
        checksum = google_crc32c.extend(checksum, buffer[:size])
    return checksum


def printed(checksum: int) -> str:
    """A checksum as Cloud Storage prints it: base64 of its big-endian bytes."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def parsed(text: str) -> int:
    """The inverse of `printed`."""
    return int.from_bytes(base64.b64decode(text), "big")
