"""Shards and loss masks as `.npy` files: NumPy format 1.0, a 128-byte header.

A shard is `<u4` or `<u2` of shape `(tokens,)`. The format is NumPy's own (numpy.lib.format, NEP 1);
`numpy.save` writes the same bytes. Here the header is made from the token count alone, so a shard
can be assembled from pieces without holding it in memory. `parse_header` refuses every other
header: a shard of another type is damaged, not something to convert.

`metadata/masks/train_0017.npy` says which tokens of a shard of conversations are learned. It is
`|u1` of shape `(ceil(tokens / 8),)`. Bit `i % 8` of byte `i // 8` is 1 where token `i` is learned
(`numpy.unpackbits` with `bitorder="little"`), and unused bits are 0. It is a function of the
shard's document table. It is not next to the shard, because readers that list `train/` would
take it for tokens.
"""

import re
import struct

import numpy as np
import numpy.typing as npt

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

# Half-open ranges of tokens, int64, shape (n, 2).
Ranges = npt.NDArray[np.int64]
MASK_DTYPE = np.dtype(np.uint8)
# Tokens whose bits are in memory at a time, one byte each.
_WINDOW = 1 << 20


def header(tokens: int, dtype: np.dtype[np.unsignedinteger] = TOKEN_DTYPE) -> bytes:
    """The first 128 bytes of a shard of `tokens` tokens."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({int(tokens)},), }}"
    length = HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + struct.pack("<H", length) + text.ljust(length - 1).encode("latin1") + b"\n"


def parse_header(first_bytes: bytes, dtype: np.dtype[np.unsignedinteger] = TOKEN_DTYPE) -> int:
    """The token count in a shard's first bytes; ValueError says what was found, but no name."""
    if len(first_bytes) < HEADER_BYTES:
        raise ValueError(
            f"has {len(first_bytes)} bytes, fewer than the header of a shard ({HEADER_BYTES})"
        )
    if first_bytes[:8] != _MAGIC:
        raise ValueError(f"is not a .npy file of version 1.0: it starts with {first_bytes[:8]!r}")
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


def mask_content(learned: Ranges, tokens: int) -> bytes:
    """The file of the mask of a shard of `tokens` tokens. learned: ranges of them, in order."""
    parts = [header(-(-tokens // 8), MASK_DTYPE)]
    for start in range(0, tokens, _WINDOW):
        bits = is_learned(learned, start, min(start + _WINDOW, tokens))
        parts.append(np.packbits(bits, bitorder="little").tobytes())
    return b"".join(parts)


def is_learned(learned: Ranges, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Whether each of the tokens `[start, stop)` is in one of the ranges, which are in order."""
    begins, ends = learned[:, 0], learned[:, 1]
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(begins, stop, side="left")
    steps = np.zeros(stop - start + 1, np.int8)
    # Ranges do not overlap, so no place occurs twice in either line.
    steps[np.maximum(begins[first:last], start) - start] += 1
    steps[np.minimum(ends[first:last], stop) - start] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def count_learned(learned: Ranges) -> int:
    """The number of tokens in ranges."""
    return int((learned[:, 1] - learned[:, 0]).sum())
