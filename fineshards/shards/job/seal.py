"""The seal of a JSON file: its last line but one is the CRC-32C of all that is before that line.

    …
     "crc32c": "yZRlqg=="
    }

The checksum is in base64, as Cloud Storage writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import islice
from typing import Any

_CHUNKS = 10_000
_SEAL = b' "crc32c": '


def sealed(content: Mapping[str, Any], ensure_ascii: bool = True) -> bytes:
    r"""A JSON object with its seal, without a line end after it.

    Its values may be iterators, which are written as lists: there may be very many records.

    Example:
        >>> print(sealed({"a": 1}).decode())
        {
         "a": 1,
         "crc32c": "+1ZcjQ=="
        }
    """
    # Imported here because it needs google_crc32c, which a read-only install may lack.
    from fineshards.storage.checksums import checksum_to_base64, crc32c

    encoder = json.JSONEncoder(indent=1, ensure_ascii=ensure_ascii, default=_as_list)
    chunks = encoder.iterencode(content)
    written = bytearray()
    # A part at a time: a large record is millions of chunks.
    while part := "".join(islice(chunks, _CHUNKS)):
        written += part.encode()
    checked = bytes(written).removesuffix(b"\n}") + b",\n"
    return checked + b'%s"%s"\n}' % (_SEAL, checksum_to_base64(crc32c(checked)).encode())


def seal_holds(stored: bytes) -> bool | None:
    """Whether a file is as `sealed` made it; None if google_crc32c is not installed."""
    try:
        from fineshards.storage.checksums import checksum_to_base64, file_checksum
    except ModuleNotFoundError:
        return None
    at = max(stored.rfind(_SEAL), 0)
    checksum = checksum_to_base64(file_checksum(BytesIO(stored), 0, at))
    return stored[at:] == b'%s"%s"\n}' % (_SEAL, checksum.encode())


def _as_list(value: object) -> list[Any]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
