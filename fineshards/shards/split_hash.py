"""Hashes of split keys and of texts: XXH3 with a seed of their own. See `split_rule.py`."""

import re
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

# The bytes of "fs-split". It keeps the side independent of other uses of XXH3 on the same keys.
SEED = 0x66732D73706C6974

# The host of RFC 3986: after the scheme and the user, before the port.
_HOST = re.compile(rb"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?+(\[[^]/?#@]*\]|[^:/?#@]+)", re.IGNORECASE)


def row_keys(
    files: npt.NDArray[np.integer[Any]], rows: npt.NDArray[np.integer[Any]]
) -> Iterator[bytes]:
    """The keys `row` of documents, from each one's file, as a position in the input, and row."""
    return map(b"%d:%d".__mod__, zip(files.tolist(), rows.tolist(), strict=True))


def hash_texts(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """XXH3_64bits_withSeed of each text, uint64, shape (n,); texts as the keys of `hash_keys`."""
    return _hash(_views(texts))


def hash_keys(
    keys: pa.Array | None, files: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """The hashes of n documents.

    keys: string, large_string or binary, shape (n,); where null, and if None, the row key counts.
    files, rows: shape (n,): each document's file, as a position in the input, and row.
    """
    if keys is None:
        return _upper(_hash(row_keys(files, rows)))
    hashes = _upper(_hash(_views(keys)))
    if keys.null_count:
        missing = keys.is_null().to_numpy(zero_copy_only=False)
        hashes[missing] = hash_keys(None, files[missing], rows[missing])
    return hashes


def host_names(urls: pa.Array) -> pa.Array:
    """The host names of URLs as binary: ASCII letters in lower case; null where there is none.

    A host ends before its port and begins after the scheme, `//` and the user. Nothing else is
    changed: `www.` stays, and so do a trailing dot and the brackets of an IPv6 address.
    """
    matches = (_HOST.match(url) for url in _views(urls))
    return pa.array([match and match[1].lower() for match in matches], pa.binary())


def _hash(keys: Iterable[bytes | memoryview]) -> npt.NDArray[np.uint64]:
    return np.array(list(map(xxhash.xxh3_64_intdigest, keys, repeat(SEED))), np.uint64)


def _upper(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    return (hashes >> np.uint64(32)).astype(np.uint32)


def _views(strings: pa.Array) -> Iterator[memoryview]:
    """The bytes of each string without a copy; a null is empty."""
    if len(strings) == strings.null_count:
        return repeat(memoryview(b""), len(strings))
    _, offsets, data = strings.buffers()
    wide = pa.types.is_large_string(strings.type) or pa.types.is_large_binary(strings.type)
    borders = np.frombuffer(offsets, np.int64 if wide else np.int32)
    places = borders[strings.offset : strings.offset + len(strings) + 1].tolist()
    # No text becomes a Python string, and no step of the loop is Python code.
    return map(memoryview(data or b"").__getitem__, map(slice, places, places[1:]))
