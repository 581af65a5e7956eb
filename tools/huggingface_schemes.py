"""Widely used ways of splitting in tokenizer.json files, and a vocabulary that reveals them.

They are copied from the tokenizer.json files of the models that they are named after. They have no
`ignore_merges`, which has effect only within pretokens (`fineshards/encoders/tokenizer_json.py`).
"""

import json
from typing import Any

from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import DEFAULT_EOT

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_NOT_LETTERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
_LLAMA3 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_NOT_LETTERS}{_SPACES}"
_QWEN2 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_NOT_LETTERS}{_SPACES}"
_QWEN3_5 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    rf"{_ENDINGS}?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    rf"{_ENDINGS}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
# The file contains the line ends and CJK characters of these patterns literally.
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
    "\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return step | {"use_regex": use_regex}


def _splits(*patterns: str, removed: bool = False) -> dict[str, Any]:
    """Splitting by patterns that match all of a text, in either of the two notations."""
    how = {"behavior": "Removed" if removed else "Isolated", "invert": removed}
    steps = [{"type": "Split", "pattern": {"Regex": pattern}} | how for pattern in patterns]
    return {"type": "Sequence", "pretokenizers": [*steps, _byte_level(use_regex=False)]}


_NFC = {"type": "NFC"}


def _alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    stand_ins = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


ALPHABET = _alphabet()
# Normalizer and pre-tokenizer.
PIPELINES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "huggingface gpt2": (None, _byte_level(use_regex=True)),
    "huggingface llama3": (None, _splits(_LLAMA3)),
    "huggingface gpt4": (None, _splits(_LLAMA3, removed=True)),
    "huggingface qwen2": (_NFC, _splits(_QWEN2)),
    "huggingface qwen3.5": (_NFC, _splits(_QWEN3_5)),
    "huggingface deepseek_v3": (None, _splits(*_DEEPSEEK_V3)),
    "huggingface o200k": (None, _splits(_O200K)),
    "huggingface gpt4o": (None, _splits(_O200K, removed=True)),
}


def revealing_tokenizer(name: str, pairs: list[bytes]) -> TokenizerJson:
    """A tokenizer with a pipeline's splitting, and the bytes and `pairs` as tokens, in order."""
    normalizer, pre_tokenizer = PIPELINES[name]
    tokens = [*ALPHABET, *("".join(ALPHABET[byte] for byte in pair) for pair in pairs)]
    specials = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": len(tokens), "content": DEFAULT_EOT, "special": True} | specials],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": _byte_level(use_regex=False),
        "model": {
            "type": "BPE",
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": [list(token) for token in tokens[len(ALPHABET) :]],
        },
    }
    return TokenizerJson(name, json.dumps(content).encode(), DEFAULT_EOT)
