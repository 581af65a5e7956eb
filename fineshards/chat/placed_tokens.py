"""Encodes a rendered conversation, and finds the tokens of parts of it.

Special tokens have a hidden name in it, HIDDEN and one more character, which no conversation holds.
So the strings that usually stand for them are ordinary text. A part has all tokens that have at
least one of its characters, from the first to the last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.chat.conversation import HIDDEN, HIDDEN_NAME, BadConversation
from fineshards.encoders.encoder import Encoder, is_panic
from fineshards.encoders.loading import encoder_of_vocabulary
from fineshards.encoders.tokenizer_json import MATCH_FLAGS, TokenizerJson, library_of
from fineshards.encoders.vocabulary import Vocabulary
from fineshards.errors import FineshardsError, UsageError

# Begins the private use characters of plane 16.
_FIRST = 0x100000


class EncodedConversation(NamedTuple):
    """The tokens of a conversation, and those to learn.

    tokens: shape (n,), without the EOT that begins documents. learned: half-open ranges of tokens,
    int32, shape (k, 2), in order, which do not touch each other.
    """

    tokens: npt.NDArray[np.uint32]
    learned: npt.NDArray[np.int32]


class Rendered(NamedTuple):
    """A text with hidden names, and the parts of it that are learned: ranges of characters."""

    text: str
    parts: Sequence[tuple[int, int]]


def hidden_names(vocabulary: Vocabulary | TokenizerJson) -> dict[str, str]:
    """The hidden names of special tokens, by their usual strings."""
    strings = (text for text, _ in vocabulary.special_tokens)
    return {text: HIDDEN + chr(_FIRST + number) for number, text in enumerate(strings)}


def text_encoder(
    vocabulary: Vocabulary | TokenizerJson, fast: bool
) -> HuggingFaceTexts | BetweenSpecials:
    """The encoder of a vocabulary. Raises UsageError for a tokenizer.json that cannot be used.

    fast: whether it may be gigatoken, where that is exact.
    """
    if isinstance(vocabulary, TokenizerJson):
        whole = HuggingFaceTexts(vocabulary)
        return _fast_texts(vocabulary, whole) if fast else whole
    sizes = {id_: len(token) for token, id_ in vocabulary.ids().items()}
    encoder = encoder_of_vocabulary(vocabulary, "auto" if fast else None)
    return BetweenSpecials(vocabulary, encoder, sizes, None)


class HuggingFaceTexts:
    """Tokenizers itself, which knows special tokens by their hidden names alone."""

    is_fast = False

    def __init__(self, tokenizer: TokenizerJson) -> None:
        names = hidden_names(tokenizer)
        try:
            self._library: Any = library_of(_renamed(tokenizer, names))
        except FineshardsError as error:
            raise UsageError(
                f"--tokenizer {tokenizer.name}: conversations cannot be encoded with it, because "
                f"its merges make or use special tokens ({error}). Remove these merges, or make "
                "the tokens ordinary ones."
            ) from error
        self._library.encode_special_tokens = False
        for text, id_ in tokenizer.special_tokens:
            ids = self._library.encode(f"a {names[text]} b", add_special_tokens=False).ids
            if ids.count(id_) != 1 or self._library.token_to_id(names[text]) != id_:
                raise UsageError(
                    f"--tokenizer {tokenizer.name}: conversations cannot be encoded with it, "
                    f"because its steps change special tokens such as {text}."
                )

    def encode(self, rendered: Sequence[Rendered]) -> list[EncodedConversation | BadConversation]:
        """The tokens of conversations, or why they have none."""
        return [*map(self._encode, rendered)]

    def _encode(self, rendered: Rendered) -> EncodedConversation | BadConversation:
        try:
            encoding = self._library.encode(rendered.text, add_special_tokens=False)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            return BadConversation(f"tokenizers cannot encode it ({error})")
        tokens = np.array(encoding.ids, np.uint32)
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return EncodedConversation(tokens, _ranges(places[:, 0], places[:, 1], rendered.parts))


class BetweenSpecials:
    """An encoder of ordinary text, which is given what is between special tokens.

    is_fast: whether it is gigatoken. sizes: the bytes of each ordinary token. whole: encodes the
    texts whose tokens have other bytes than they; None if there are none.
    """

    def __init__(
        self,
        vocabulary: Vocabulary | TokenizerJson,
        encoder: Encoder,
        sizes: dict[int, int],
        whole: HuggingFaceTexts | None,
    ) -> None:
        self._encoder, self._whole = encoder, whole
        self.is_fast = encoder.reference is not encoder
        names = hidden_names(vocabulary)
        self._ids = {names[text]: id_ for text, id_ in vocabulary.special_tokens}
        self._sizes = np.zeros(vocabulary.size, np.int64)
        self._sizes[[*sizes]] = [*sizes.values()]
        self._sizes[[*self._ids.values()]] = [len(name.encode()) for name in self._ids]

    def encode(self, rendered: Sequence[Rendered]) -> list[EncodedConversation | BadConversation]:
        """As above; with one call of the encoder for all, because each takes time."""
        pieces = [HIDDEN_NAME.split(text) for text, _ in rendered]
        ordinary = [piece for split in pieces for piece in split[::2]]
        batch = self._encoder.encode(pa.array(ordinary, pa.large_string()))
        encoded = (batch.document(index)[1:] for index in range(len(ordinary)))
        conversations = []
        for split, (text, parts) in zip(pieces, rendered, strict=True):
            tokens = np.concatenate(
                [
                    np.array([self._ids[piece]], np.uint32) if number % 2 else next(encoded)
                    for number, piece in enumerate(split)
                ]
            )
            conversations.append(self._placed(tokens, text, parts))
        return conversations

    def _placed(
        self, tokens: npt.NDArray[np.uint32], text: str, parts: Sequence[tuple[int, int]]
    ) -> EncodedConversation | BadConversation:
        sizes = self._sizes[tokens]
        ends = np.cumsum(sizes)
        if self._whole is not None and (
            not is_normalized("NFC", text) or int(sizes.sum()) != len(text.encode())
        ):
            return self._whole.encode([Rendered(text, parts)])[0]
        borders = [0, *sorted({border for part in parts for border in part})]
        between = (len(text[a:b].encode()) for a, b in pairwise(borders))
        places = dict(zip(borders[1:], accumulate(between), strict=True))
        in_bytes = [(places[a], places[b]) for a, b in parts]
        return EncodedConversation(tokens, _ranges(ends - sizes, ends, in_bytes))


def _fast_texts(
    tokenizer: TokenizerJson, whole: HuggingFaceTexts
) -> HuggingFaceTexts | BetweenSpecials:
    """The fast encoder between special tokens, where that is all the library does."""
    encoder = encoder_of_vocabulary(tokenizer, "auto")
    added = tokenizer.added_tokens
    reaching = any(token["special"] and any(map(token.get, MATCH_FLAGS)) for token in added)
    normalizer = json.loads(tokenizer.pattern)["normalizer"]
    if encoder.reference is encoder or reaching or normalizer not in (None, {"type": "NFC"}):
        return whole
    # In a byte-level vocabulary each character stands for a byte.
    sizes = {id_: len(text) for text, id_ in tokenizer.content["model"]["vocab"].items()}
    for token in added:
        sizes[tokenizer.library.token_to_id(token["content"])] = len(token["content"].encode())
    return BetweenSpecials(tokenizer, encoder, sizes, whole)


def _ranges(
    begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], parts: Sequence[tuple[int, int]]
) -> npt.NDArray[np.int32]:
    """The tokens of parts, as ranges that do not touch each other."""
    ranges: list[list[int]] = []
    for begin, end in parts:
        first = int(np.searchsorted(ends, begin, "right"))
        last = int(np.searchsorted(begins, end, "left"))
        if begin >= end or first >= last:
            continue
        if ranges and first <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], last)
        else:
            ranges.append([first, last])
    return np.array(ranges, np.int32).reshape(-1, 2)


def _renamed(tokenizer: TokenizerJson, names: dict[str, str]) -> dict[str, Any]:
    """The parsed file with other names for special tokens, which keep their ids."""
    model = tokenizer.content["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        vocab = {names.get(text, text): id_ for text, id_ in vocab.items()}
    else:
        vocab = [[names.get(text, text), score] for text, score in vocab]
    unknown = model.get("unk_token")
    return tokenizer.content | {
        "model": model | {"vocab": vocab, "unk_token": names.get(unknown, unknown)},
        "added_tokens": [
            token | {"content": names.get(token["content"], token["content"])}
            for token in tokenizer.added_tokens
        ],
    }
