"""The characters that stand for bytes in the vocabularies of byte-level tokenizers.

GPT-2 gave each of the 256 bytes a printable character (bytes_to_unicode in its encoder.py), and all
byte-level tokenizer.json files write their tokens in them: `Ġthe` is ` the`.
"""

from __future__ import annotations


def _alphabet() -> list[str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


# The character of each byte.
ALPHABET = tuple(_alphabet())
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}


def to_characters(token: bytes) -> str:
    """A token's bytes as a vocabulary writes them."""
    return "".join(ALPHABET[byte] for byte in token)


def to_bytes(token: str) -> bytes | None:
    """The bytes of a token as a vocabulary writes it; None if other characters are in it."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return None
