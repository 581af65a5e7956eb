"""Shards as `.npy` files: NumPy format 1.0, `<u4` or `<u2`, shape `(n,)`, a 128-byte header.

The format is NumPy's own (numpy.lib.format, NEP 1); `numpy.save` writes the same bytes. Here the
header is made from the token count alone, so a shard can be assembled from pieces without holding
it in memory. `parse_header` refuses every other header: a shard of another type is damaged, not
something to convert.
"""

from __future__ import annotations

import re
import struct

import numpy as np

# The dtypes of tokens, by their names in `--dtype`.
DTYPES: dict[str, np.dtype[np.unsignedinteger]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
TOKEN_DTYPE = DTYPES["uint32"]
HEADER_BYTES = 128
_MAGIC = b"\x93NUMPY\x01\x00"
# A header is a Python literal, but Python 3.11's literal parser sometimes fails when two threads
# call it (https://github.com/python/cpython/issues/106905).
_DESCR = re.compile(rb"'descr': '([^']*)'")
_SHAPE = re.compile(rb"'shape': \((\d+),\)")


def header(tokens: int, dtype: np.dtype[np.unsignedinteger] = TOKEN_DTYPE) -> bytes:
    """The first 128 bytes of a shard of `tokens` tokens."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({int(tokens)},), }}"
    length = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + struct.pack("<H", length) + text.ljust(length - 1).encode("latin1") + b"\n"


def parse_header(first_bytes: bytes, dtype: np.dtype[np.unsignedinteger] = TOKEN_DTYPE) -> int:
    """The token count in a shard's first 128 bytes; raises ValueError for any other file.

    The message says what was found; the caller puts the file's name before it.
    """
    if len(first_bytes) < HEADER_BYTES:
        raise ValueError(
            f"has {len(first_bytes)} bytes, fewer than the header of a shard ({HEADER_BYTES})"
        )
    if first_bytes[:6] != _MAGIC[:6]:
        raise ValueError(f"is not a .npy file: it starts with {first_bytes[:6]!r}")
    if first_bytes[6:8] != _MAGIC[6:]:
        raise ValueError(f"is .npy version {tuple(first_bytes[6:8])}, expected (1, 0)")
    fields = first_bytes[10:].rstrip()
    descr, shape = _DESCR.search(fields), _SHAPE.search(fields)
    if descr and descr[1] != dtype.str.encode():
        raise ValueError(f"holds dtype '{descr[1].decode('latin1')}', expected {dtype.str!r}")
    if shape is None or first_bytes != header(int(shape[1]), dtype):
        raise ValueError(
            f"has the header {fields.decode('latin1')!r}, expected that of a one-dimensional "
            f"array of {dtype.str!r} in C order"
        )
    return int(shape[1])


def file_bytes(tokens: int, dtype: np.dtype[np.unsignedinteger] = TOKEN_DTYPE) -> int:
    """The size in bytes of a shard of `tokens` tokens."""
    return HEADER_BYTES + tokens * dtype.itemsize
