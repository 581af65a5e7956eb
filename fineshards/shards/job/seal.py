"""The seal of a JSON file: its last line but one is the CRC-32C of all that is before that line.

    …
     "crc32c": "yZRlqg=="
    }

The checksum is in base64, as Cloud Storage writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_NESTED = frozenset({dict, list, tuple})


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

    checked, before = bytearray(), b"{"
    for name, value in content.items():
        checked += before + f"\n {json.dumps(name, ensure_ascii=ensure_ascii)}: ".encode()
        before = b","
        if isinstance(value, Iterator):
            opens = b"["
            for each in value:
                checked += opens + f"\n  {_indented(each, 2, ensure_ascii)}".encode()
                opens = b","
            checked += b"[]" if opens == b"[" else b"\n ]"
        else:
            checked += _indented(value, 1, ensure_ascii).encode()
    checked += b",\n"
    seal = {"crc32c": checksum_to_base64(crc32c(bytes(checked)))}
    return bytes(checked + json.dumps(seal, indent=1).encode().removeprefix(b"{\n"))


def _indented(value: Any, depth: int, ensure_ascii: bool) -> str:
    """What `json.dumps(value, indent=1)` gives at a depth, in a fraction of its time.

    json writes lines in Python, and what has none by a fast encoder. That one writes here what has
    nothing nested, with lines as its separators.
    """
    line = "\n" + (depth + 1) * " "
    encode = _encoder(ensure_ascii, f",{line}").encode
    if not _is_nested(value):
        return encode(value)
    parts = []
    values = value.values() if isinstance(value, dict) else value
    if _NESTED.isdisjoint(map(type, values)):
        parts = [encode(value)[1:-1]]
    elif isinstance(value, dict):
        flat: dict[str, Any] = {}
        for name, each in value.items():
            if not _is_nested(each):
                flat[name] = each
                continue
            if flat:
                parts.append(encode(flat)[1:-1])
                flat = {}
            parts.append(f"{encode(name)}: {_indented(each, depth + 1, ensure_ascii)}")
        if flat:
            parts.append(encode(flat)[1:-1])
    else:
        parts = [_indented(each, depth + 1, ensure_ascii) for each in value]
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    return f"{opens}{line}{f',{line}'.join(parts)}{line[:-1]}{closes}"


def _is_nested(value: Any) -> bool:
    return type(value) in _NESTED and bool(value)


@lru_cache
def _encoder(ensure_ascii: bool, separator: str) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=ensure_ascii, separators=(separator, ": "))
