"""Derives `differences.json`: `python -m encoders.derive` asks both libraries about all of Unicode.

Tokens of a real vocabulary hide most differences in splitting: few tokens cross the place where one
library ends a piece and the other goes on. So both get a vocabulary made for this, in which every
pair of bytes is a token, pairs with an ASCII byte first: whether two neighbouring characters are in
one piece then always shows in the tokens. What is found so holds for every vocabulary.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from importlib.metadata import version

import numpy as np
import pyarrow as pa

from encoders.differences import Scheme, Table
from encoders.gigatoken_encoder import GigatokenTokenizer
from encoders.tiktoken_encoder import TiktokenEncoder
from encoders.vocabulary import Vocabulary

# gigatoken's names for the schemes, and their patterns as in tiktoken_ext/openai_public.py of
# tiktoken 0.14.
SCHEMES = {
    "r50k_base": (
        "gpt2",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    ),
    "cl100k_base": (
        "gpt4",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    "o200k_base": (
        "o200k",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}

# What can stand around a character `_` and changes the pieces with its class: letters of either
# case, digits, marks, punctuation, contractions, white space, the character itself.
CONTEXTS = (
    "a_a A_A a_A _ a 1_1 12_3 !_!  !_ '_ '_e 'r_   _  a /_/ __ _'s _'S \u0301_a _\u0301A"
    "~!_\n~\n_\n~_/\n~\t_\t~\r_\r\n~\u3000_\u3000"
)

_CHUNK = 20_000


def code_points() -> list[int]:
    """The 1,112,064 code points that text can hold: all but the surrogates."""
    return [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def revealing_ranks() -> bytes:
    """A rank file of all bytes and all pairs of bytes, those with ASCII in them first."""
    ascii_, other = range(128), range(128, 256)
    halves = [(ascii_, other), (other, ascii_), (ascii_, ascii_), (other, other)]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes([a, b]) for left, right in halves for a in left for b in right]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def derive() -> Table:
    """Compares the two libraries on every code point in every context; takes some minutes."""
    schemes = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, (fast, pattern) in SCHEMES.items():
            starts = range(0, len(code_points()), _CHUNK)
            found = [
                code
                for codes in pool.map(_differing, [name] * len(starts), starts)
                for code in codes
            ]
            schemes[name] = Scheme(fast, pattern, tuple(_runs(found)))
    return Table({package: version(package) for package in ("gigatoken", "tiktoken")}, schemes)


def _differing(name: str, start: int) -> list[int]:
    fast, reference = _pair(name)
    codes = code_points()[start : start + _CHUNK]
    texts = pa.array([CONTEXTS.replace("_", chr(code)) for code in codes], pa.large_string())
    ours, theirs = fast.encode(texts), reference.encode(texts)
    return [
        code
        for index, code in enumerate(codes)
        if not np.array_equal(ours.document(index), theirs.document(index))
    ]


@lru_cache(maxsize=1)
def _pair(name: str) -> tuple[GigatokenTokenizer, TiktokenEncoder]:
    scheme, pattern = SCHEMES[name]
    ranks = revealing_ranks()
    eot = 1 << 17
    vocabulary = Vocabulary(name, ranks, pattern, (("<|endoftext|>", eot),))
    return GigatokenTokenizer(ranks, scheme, eot), TiktokenEncoder(vocabulary)


def _runs(codes: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return runs


if __name__ == "__main__":
    table = derive()
    table.save()
    for scheme_name, scheme in table.schemes.items():
        count = sum(last - first + 1 for first, last in scheme.ranges)
        print(f"{scheme_name}: {count:,} code points differ")
