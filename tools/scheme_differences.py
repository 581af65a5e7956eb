"""Derives `differences.json` by comparing the libraries on all of Unicode.

Run as `python -m tools.scheme_differences`. With scheme names as arguments, only those schemes
are derived again.

The tokens of a real vocabulary hide most differences in splitting: few tokens cross the position
where one library ends a pretoken and the other does not. So both get a vocabulary made for this
purpose, in which every pair of bytes is a token, pairs with an ASCII byte first. Its tokens always
show whether two adjacent characters are in the same pretoken, so the result holds for every
vocabulary.

Where text is normalized first, sequences of characters that compose are compared too. A scheme
that differs in ASCII, or in more code points than a newer Unicode version explains, has no entry.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from importlib.metadata import version

import gigatoken
import numpy as np
import pyarrow as pa
import regex

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.gigatoken.bounded_tokenizer import BoundedTokenizer, from_ranks
from fineshards.encoders.gigatoken.differences import TABLE, Scheme, SchemeTable, load_table
from fineshards.encoders.gigatoken.exact_encoder import gigatoken_json
from fineshards.encoders.tokenizer_json import HuggingFaceEncoder
from fineshards.encoders.vocabulary import CL100K_PATTERN, TiktokenEncoder, Vocabulary, rank_file
from tools.huggingface_schemes import PIPELINES, revealing_tokenizer

# gigatoken's names for the schemes, and the patterns from tiktoken_ext/openai_public.py in
# tiktoken 0.14.
SCHEMES = {
    "r50k_base": (
        "gpt2",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    ),
    "cl100k_base": ("gpt4", CL100K_PATTERN),
    "o200k_base": (
        "o200k",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}

# Contexts of a character `_` in which its class changes the splitting: letters of either case,
# digits, marks, punctuation, contractions, white space, the character itself.
CONTEXTS = (
    "a_a A_A a_A _ a 1_1 12_3 !_!  !_ '_ '_e 'r_   _  a /_/ __ _'s _'S \u0301_a _\u0301A"
    "~!_\n~\n_\n~_/\n~\t_\t~\r_\r\n~\u3000_\u3000"
)

# Contexts for normal forms: marks of four combining classes next to `_` show which class it has.
NORMAL_CONTEXTS = "~q\u0301_ q_\u0323 q_\u0334 q\u0345_ a_\u0301 e\u0323_\u0301~_\u0301\u0323_"

# From this code point on there are only private and unassigned characters, except some tags.
# These contexts show whether a library gives one of them a class. Many go into one text.
HIGH_PLANES = 0x40000
HIGH_CONTEXTS = "a_a A_a A_A 1_1 !_! '_e  _ q\u0301_ q_\u0323\n"
_TOGETHER = 50

# More code points than those whose class a newer Unicode version changes.
LIMIT = 20_000

_CHUNK = 20_000


def code_points() -> list[int]:
    """The 1,112,064 code points that text can contain: all but the surrogates."""
    return [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def compositions() -> list[str]:
    """Sequences that a normal form may compose: those that Python knows, and all newer pairs.

    Newer pairs are of characters that the `regex` module knows and Python does not. Characters
    that compose are in the same block of 256 and are not ideographs.
    """
    characters = list(map(chr, code_points()))
    decomposed = [unicodedata.normalize("NFD", character) for character in characters]
    composed = [
        form for character, form in zip(characters, decomposed, strict=True) if form != character
    ]
    assigned = regex.compile(r"[\p{M}\p{L}--\p{Ideographic}--\p{Egyptian_Hieroglyphs}]", regex.V1)
    newer = [x for x in characters if unicodedata.category(x) == "Cn" and assigned.match(x)]
    return composed + [a + b for a in newer for b in newer if ord(a) >> 8 == ord(b) >> 8]


def revealing_pairs() -> list[bytes]:
    """All pairs of bytes, pairs with an ASCII byte first."""
    ascii_, other = range(128), range(128, 256)
    halves = [(ascii_, other), (other, ascii_), (ascii_, ascii_), (other, other)]
    return [bytes([a, b]) for left, right in halves for a in left for b in right]


def revealing_ranks() -> bytes:
    """A rank file with all bytes and all pairs of bytes."""
    tokens = [bytes([byte]) for byte in range(256)] + revealing_pairs()
    return rank_file((token, rank) for rank, token in enumerate(tokens))


def derive(names: Iterable[str]) -> Iterator[tuple[str, Scheme | None]]:
    """Compares the libraries on every code point in every context. Takes one minute per scheme.

    Yields None for a scheme that has no fast path.
    """
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in names:
            starts = range(0, len(code_points()), _CHUNK)
            codes = pool.map(_differing, [name] * len(starts), starts)
            differing = [code for chunk in codes for code in chunk]
            if _normalizes(name):
                starts = range(0, len(compositions()), _CHUNK)
                sequences = pool.map(_differing_compositions, [name] * len(starts), starts)
                differing = _with_compositions(differing, [x for chunk in sequences for x in chunk])
            print(
                f"{name}: {len(differing):,} code points differ, {differing[:3]} first", flush=True
            )
            if len(differing) > LIMIT or any(code < 128 for code in differing):
                yield name, None
            else:
                fast, pattern = _described(name)
                yield name, Scheme(pattern, tuple(_runs(differing)), fast)


def _differing(name: str, start: int) -> list[int]:
    codes = code_points()[start : start + _CHUNK]
    if codes[0] >= HIGH_PLANES:
        together = [codes[first : first + _TOGETHER] for first in range(0, len(codes), _TOGETHER)]
        joined = ["".join(HIGH_CONTEXTS.replace("_", chr(x)) for x in some) for some in together]
        codes = [code for index in _differing_texts(name, joined) for code in together[index]]
    contexts = CONTEXTS + NORMAL_CONTEXTS if _normalizes(name) else CONTEXTS
    texts = [contexts.replace("_", chr(code)) for code in codes]
    return [codes[index] for index in _differing_texts(name, texts)]


def _differing_compositions(name: str, start: int) -> list[str]:
    sequences = compositions()[start : start + _CHUNK]
    texts = [f"a{sequence} {sequence}A{sequence}\u0301" for sequence in sequences]
    return [sequences[index] for index in _differing_texts(name, texts)]


def _with_compositions(differing: list[int], sequences: Iterable[str]) -> list[int]:
    """Adds the characters of differing sequences, unless one of them already differs alone."""
    alone = set(differing)
    more = {ord(x) for text in sequences for x in text if alone.isdisjoint(map(ord, text))}
    return sorted(alone | more)


def _differing_texts(name: str, texts: list[str]) -> list[int]:
    """The indices of texts that the libraries encode differently."""
    fast, reference = _pair(name)
    strings = pa.array(texts, pa.large_string())
    ours, theirs = fast.encode(strings), reference.encode(strings)
    return [
        index
        for index in range(len(texts))
        if not np.array_equal(ours.document(index), theirs.document(index))
    ]


def _normalizes(name: str) -> bool:
    return name in PIPELINES and PIPELINES[name][0] is not None


def _described(name: str) -> tuple[str, str]:
    """gigatoken's name for a scheme of tiktoken, and the pattern."""
    return SCHEMES.get(name) or ("", revealing_tokenizer(name, []).pattern)


@lru_cache(maxsize=1)
def _pair(name: str) -> tuple[BoundedTokenizer, Encoder]:
    if name in PIPELINES:
        tokenizer = revealing_tokenizer(name, revealing_pairs())
        data = gigatoken_json(tokenizer)
        fast = BoundedTokenizer(lambda: gigatoken.Tokenizer.from_json(data), tokenizer.eot)
        return fast, HuggingFaceEncoder(tokenizer)
    scheme, pattern = SCHEMES[name]
    ranks = revealing_ranks()
    eot = 1 << 17
    vocabulary = Vocabulary(name, ranks, pattern, (("<|endoftext|>", eot),))
    fast = BoundedTokenizer(lambda: from_ranks(ranks, scheme), eot)
    return fast, TiktokenEncoder(vocabulary)


def _runs(codes: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return runs


def content_of(table: SchemeTable) -> str:
    """A table as it is stored."""
    schemes = {
        name: {
            **({"fast": scheme.fast} if scheme.fast else {}),
            "pattern": scheme.pattern,
            "ranges": " ".join(
                f"{first:04X}" if first == last else f"{first:04X}-{last:04X}"
                for first, last in scheme.ranges
            ),
        }
        for name, scheme in table.schemes.items()
    }
    content = {"versions": table.versions, "schemes": schemes}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main(names: list[str]) -> None:
    """Derives the named schemes, or all, and writes the table after each."""
    versions = {name: version(name) for name in ("gigatoken", "tiktoken", "tokenizers")}
    table = load_table()
    if not names:
        table = SchemeTable(versions, {})
    elif table.versions != versions:
        sys.exit(f"the table was derived with {table.versions}: derive all schemes again")
    for name, scheme in derive(names or [*SCHEMES, *PIPELINES]):
        unchanged = {x: table.schemes[x] for x in table.schemes if x != name}
        table = SchemeTable(versions, unchanged | ({name: scheme} if scheme else {}))
        TABLE.write_text(content_of(table), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
