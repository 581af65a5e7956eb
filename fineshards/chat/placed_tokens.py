"""Encodes a rendered conversation, and finds the tokens of parts of it.

Special tokens have a hidden name in it, HIDDEN and one more character, which no conversation holds.
So the strings that usually stand for them are ordinary text. A part has all tokens that have at
least one of its characters, from the first to the last.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.chat.conversation import HIDDEN, BadConversation
from fineshards.encoders.loading import reference_of
from fineshards.encoders.tokenizer_json import IGNORED_STEPS, TokenizerJson, library_of
from fineshards.encoders.vocabulary import Vocabulary
from fineshards.errors import UsageError

# Begins the private use characters of plane 16.
_FIRST = 0x100000
_SPECIAL = re.compile(f"({HIDDEN}.)", re.DOTALL)


class EncodedConversation(NamedTuple):
    """The tokens of a conversation, and those to learn.

    tokens: shape (n,), without the EOT that begins documents. learned: half-open ranges of tokens,
    int32, shape (k, 2), in order, which do not touch each other.
    """

    tokens: npt.NDArray[np.uint32]
    learned: npt.NDArray[np.int32]


class TextEncoder(Protocol):
    """Encodes texts with hidden names."""

    def encode(self, text: str, parts: Sequence[tuple[int, int]]) -> EncodedConversation:
        """The tokens of a text, and those of its parts; parts are ranges of characters."""


def hidden_names(vocabulary: Vocabulary | TokenizerJson) -> dict[str, str]:
    """The hidden names of special tokens, by their usual strings."""
    strings = (text for text, _ in vocabulary.special_tokens)
    return {text: HIDDEN + chr(_FIRST + number) for number, text in enumerate(strings)}


def text_encoder(vocabulary: Vocabulary | TokenizerJson) -> TextEncoder:
    """The encoder of a vocabulary. Raises UsageError for a tokenizer.json that cannot be used."""
    if isinstance(vocabulary, TokenizerJson):
        return _HuggingFaceTexts(vocabulary)
    return _TiktokenTexts(vocabulary)


class _HuggingFaceTexts:
    """The library itself, which knows special tokens by their hidden names alone."""

    def __init__(self, tokenizer: TokenizerJson) -> None:
        names = hidden_names(tokenizer)
        self._library: Any = library_of(_renamed(tokenizer, names))
        self._library.encode_special_tokens = False
        for text, id_ in tokenizer.special_tokens:
            found = self._library.encode(f"a {names[text]} b", add_special_tokens=False).ids
            if found.count(id_) != 1 or self._library.token_to_id(names[text]) != id_:
                raise UsageError(
                    f"--tokenizer {tokenizer.name}: conversations cannot be encoded with it, "
                    f"because its steps change special tokens such as {text}."
                )

    def encode(self, text: str, parts: Sequence[tuple[int, int]]) -> EncodedConversation:
        """See TextEncoder."""
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Rust panics are not Exceptions.
        except BaseException as error:
            raise BadConversation(f"tokenizers cannot encode it ({error})") from error
        tokens = np.array(encoding.ids, np.uint32)
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return EncodedConversation(tokens, _ranges(places[:, 0], places[:, 1], parts))


class _TiktokenTexts:
    """The reference encoder, which is given the text between special tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._reference = reference_of(vocabulary)
        names = hidden_names(vocabulary)
        self._ids = {names[text]: id_ for text, id_ in vocabulary.special_tokens}
        # The bytes of each token.
        self._sizes = np.zeros(vocabulary.size, np.int64)
        for token, rank in zip(*[iter(vocabulary.ranks.split())] * 2, strict=True):
            self._sizes[int(rank)] = len(a2b_base64(token))
        for name, id_ in self._ids.items():
            self._sizes[id_] = len(name.encode())

    def encode(self, text: str, parts: Sequence[tuple[int, int]]) -> EncodedConversation:
        """See TextEncoder."""
        pieces = _SPECIAL.split(text)
        batch = self._reference.encode(pa.array(pieces[::2], pa.large_string()))
        found = [batch.document(index)[1:] for index in range(len(pieces[::2]))]
        for place, name in enumerate(pieces[1::2], 1):
            found.insert(2 * place - 1, np.array([self._ids[name]], np.uint32))
        tokens = np.concatenate(found)
        ends = np.cumsum(self._sizes[tokens])
        in_bytes = [(len(text[:a].encode()), len(text[:b].encode())) for a, b in parts]
        return EncodedConversation(tokens, _ranges(ends - self._sizes[tokens], ends, in_bytes))


def _ranges(
    begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], parts: Sequence[tuple[int, int]]
) -> npt.NDArray[np.int32]:
    """The tokens of parts, as ranges that do not touch each other."""
    found: list[list[int]] = []
    for begin, end in parts:
        first = int(np.searchsorted(ends, begin, "right"))
        last = int(np.searchsorted(begins, end, "left"))
        if begin >= end or first >= last:
            continue
        if found and first <= found[-1][1]:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return np.array(found, np.int32).reshape(-1, 2)


def _renamed(tokenizer: TokenizerJson, names: dict[str, str]) -> dict[str, Any]:
    """The parsed file with other names for special tokens, which keep their ids."""
    content: dict[str, Any] = json.loads(tokenizer.data) | dict.fromkeys(IGNORED_STEPS)
    model = content["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        vocab = {names.get(text, text): id_ for text, id_ in vocab.items()}
    else:
        vocab = [[names.get(text, text), score] for text, score in vocab]
    unknown = model.get("unk_token")
    return content | {
        "model": model | {"vocab": vocab, "unk_token": names.get(unknown, unknown)},
        "added_tokens": [
            token | {"content": names.get(token["content"], token["content"])}
            for token in content.get("added_tokens") or []
        ],
    }
