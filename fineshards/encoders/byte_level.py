"""The characters that represent bytes in the vocabularies of byte-level tokenizers.

GPT-2 assigned a printable character to each of the 256 bytes (`bytes_to_unicode` in its
`encoder.py`). All byte-level tokenizer.json files write tokens in them: `Ġthe` is ` the`.
"""

from __future__ import annotations


def _alphabet() -> list[str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


# The character for each byte.
ALPHABET = tuple(_alphabet())
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}


def to_bytes(token: str) -> bytes | None:
    """Decodes a vocabulary token to its bytes; None if it contains other characters."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return None
