"""Tokenizers of Hugging Face's `tokenizers`, read from a `tokenizer.json`, and their encoder.

Ids always come from the library. The JSON is read here only for what the library does not expose.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.encoders.encoder import Encoder, TokenBatch, is_panic, joined
from fineshards.errors import FineshardsError
from fineshards.shards.job.settings import HUGGINGFACE

# Steps that do not change the ids of a text: they add tokens around it, cut it or pad it.
_IGNORED_STEPS = ("post_processor", "truncation", "padding")
# With these an added token matches other text than its own, or takes some around it.
MATCH_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")

# Enough to make calls cheap. Not more, because the library's objects are many times larger than
# their tokens.
_TEXTS_PER_CALL = 64


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer.json and the special token that begins documents.

    data: the user's file, byte for byte.
    """

    name: str
    data: bytes
    eot_text: str

    kind = HUGGINGFACE

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, as hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def content(self) -> dict[str, Any]:
        """The parsed file without the steps that do not change ids."""
        return _content(self.data)

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The declared added tokens: `content`, `id` and flags of each."""
        return self.content.get("added_tokens") or []

    @property
    def library(self) -> Any:
        """The tokenizers.Tokenizer, set to treat special tokens in a text as ordinary text.

        Raises FineshardsError if the library cannot read the file.
        """
        return _library(self.data)

    @cached_property
    def special_tokens(self) -> tuple[tuple[str, int], ...]:
        """Sorted (text, id) pairs."""
        added = self.library.get_added_tokens_decoder().items()
        return tuple(sorted((token.content, id_) for id_, token in added if token.special))

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ids: dict[str, int] = self.library.get_vocab(with_added_tokens=True)
        return 1 + max(ids.values())

    @property
    def eot(self) -> int:
        """The id that begins documents."""
        return dict(self.special_tokens)[self.eot_text]

    @cached_property
    def pattern(self) -> str:
        """Everything that determines where text is split, as canonical JSON.

        It excludes the vocabulary, the merges and `ignore_merges`, which has effect only within a
        pretoken.
        """
        model = self.content["model"]
        deciding = {
            "normalizer": _canonical(self.content.get("normalizer")),
            "pre_tokenizer": _canonical(self.content.get("pre_tokenizer")),
            "model": {
                "type": model.get("type", "BPE"),
                "byte_fallback": bool(model.get("byte_fallback")),
                "fuse_unk": bool(model.get("fuse_unk")),
                "continuing_subword_prefix": model.get("continuing_subword_prefix") or "",
                "end_of_word_suffix": model.get("end_of_word_suffix") or "",
            },
        }
        return json.dumps(deciding, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=2)
def _content(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(data)
    return content | dict.fromkeys(_IGNORED_STEPS)


@lru_cache(maxsize=2)
def _library(data: bytes) -> Any:
    return library_of(_content(data))


def library_of(content: dict[str, Any]) -> Any:
    """The tokenizers.Tokenizer of a parsed file, which takes special tokens for ordinary text.

    Raises FineshardsError if the library cannot read it.
    """
    # Set before the import: the library's threads would compete with ours for the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise FineshardsError(f"the tokenizers library cannot read it ({error})") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def _canonical(step: Any) -> Any:
    """A normalizer or pre-tokenizer without fields that have no effect, with explicit defaults."""
    if not isinstance(step, dict):
        return step
    kind = step.get("type")
    if kind == "Sequence":
        inner = _steps(step.get("normalizers") or step.get("pretokenizers") or ())
        return {"type": kind, "steps": inner} if inner else None
    if kind == "ByteLevel":
        # trim_offsets concerns only positions in the text.
        defaults = {"add_prefix_space": True, "use_regex": True}
        return {"type": kind} | {name: step.get(name, value) for name, value in defaults.items()}
    if kind == "Precompiled":
        charsmap = str(step.get("precompiled_charsmap")).encode()
        return {"type": kind, "sha256": hashlib.sha256(charsmap).hexdigest()}
    return step


def _steps(steps: Iterable[Any]) -> list[Any]:
    return [canonical for step in steps if (canonical := _canonical(step)) is not None]


class HuggingFaceEncoder(Encoder):
    """Encodes with tokenizers. Threads can share one: the library releases the interpreter lock."""

    def __init__(self, tokenizer: TokenizerJson) -> None:
        self._library = tokenizer.library
        self._eot = np.array([tokenizer.eot], dtype=np.uint32)
        # Special tokens that no document has inside. The unknown token stands for text.
        names = {id_: text for text, id_ in tokenizer.special_tokens}
        model = tokenizer.content["model"]
        text = model.get("unk_token")
        names.pop(model.get("unk_id") if text is None else self._library.token_to_id(text), None)
        self._refused = names | {tokenizer.eot: tokenizer.eot_text}
        self._is_refused = np.zeros(tokenizer.size, np.bool_)
        self._is_refused[[*self._refused]] = True
        self.name = f"tokenizers {version('tokenizers')}"

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`. A text that cannot be encoded is refused.

        Examples are a character without a token if there is no unknown token, and text that a
        word-level model encodes as a special token.
        """
        starts = range(0, len(texts), _TEXTS_PER_CALL)
        calls = (texts.slice(start, _TEXTS_PER_CALL).to_pylist() for start in starts)
        documents = [*chain.from_iterable(map(self._encode_texts, calls))]
        return joined(documents, len(documents))

    def decode(self, tokens: npt.NDArray[np.uint32]) -> str:
        ordinary = tokens[tokens != self._eot[0]]
        # Of others, only the unknown token can be there. It stands for text.
        text: str = self._library.decode(ordinary.tolist(), skip_special_tokens=False)
        return text

    def _encode_texts(self, texts: list[str]) -> list[npt.NDArray[np.uint32] | str]:
        """The tokens of documents, or why they are refused."""
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if len(texts) == 1:
                return [f"{self.name} cannot encode it ({error})"]
            return [document for text in texts for document in self._encode_texts([text])]
        return [self._document(np.array(encoding.ids, np.uint32)) for encoding in encodings]

    def _document(self, tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32] | str:
        special = tokens[self._is_refused[tokens]]
        if not special.size:
            return np.concatenate([self._eot, tokens])
        return f"the tokenizer encodes part of it as the special token {self._refused[special[0]]}"
