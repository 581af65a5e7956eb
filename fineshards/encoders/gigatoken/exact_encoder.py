"""The fast encoder: gigatoken, with exactly the tokens of its reference.

It is used only for ways of splitting text that have been compared on all of Unicode. Documents with
a code point that the two libraries treat differently are encoded by the reference
(`differences.py`), and so are those with the text of an added token, which only the reference
matches. Of a tokenizer.json gigatoken reads less than `tokenizers` does, and it merges in the order
of ids instead of the order of the list. Files whose tokens would silently differ are refused here,
and merges are compared on texts made of the vocabulary itself.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import gigatoken
import numpy as np
import pyarrow as pa

from fineshards.encoders.encoder import CannotEncodeError, Encoder, FastEncoder, TokenBatch, joined
from fineshards.encoders.gigatoken.bounded_tokenizer import BoundedTokenizer, from_ranks
from fineshards.encoders.gigatoken.differences import Scheme, load_table
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.encoders.vocabulary import Vocabulary

# Added tokens that documents are searched for: thousands of them make the search slow.
_MOST_ADDED = 500


class ExactEncoder(FastEncoder):
    """Encodes with gigatoken, except the few documents that only the reference gets right."""

    def __init__(self, fast: BoundedTokenizer, reference: Encoder, scheme: Scheme) -> None:
        super().__init__(None, reference)
        self._fast = fast
        self._scheme = scheme
        self.name = f"{fast.name}, checked against {reference.name}"

    def encode(self, texts: pa.Array) -> TokenBatch:
        batch = self._fast.encode(texts)
        hard = self._scheme.documents(texts)
        if not hard.size:
            return batch
        exact = self.reference.encode(texts.take(pa.array(hard)))
        documents: list[Any] = [batch.document(index) for index in range(len(texts))]
        reasons = dict(exact.refused)
        for number, index in enumerate(hard.tolist()):
            documents[index] = reasons.get(number, exact.document(number))
        return joined(documents, exact.by_reference)


def exact_encoder(vocabulary: Vocabulary | TokenizerJson, reference: Encoder) -> Encoder:
    """Returns the encoder with gigatoken; raises CannotEncodeError where it would not be exact."""
    library, table = reference.name.split()[0], load_table()
    scheme = table.scheme(library, vocabulary.pattern)
    reasons = table.other_versions(library)
    if scheme is None:
        reasons.append("its way of splitting text has not been compared with gigatoken's")
    elif isinstance(vocabulary, TokenizerJson):
        reasons += obstacles(vocabulary)
    if scheme is None or reasons:
        raise CannotEncodeError("; ".join(reasons))
    if isinstance(vocabulary, Vocabulary):
        ranks, name = vocabulary.data, scheme.fast
        fast = BoundedTokenizer(lambda: from_ranks(ranks, name), vocabulary.eot)
        return ExactEncoder(fast, reference, scheme)
    data = gigatoken_json(vocabulary)
    fast = BoundedTokenizer(lambda: gigatoken.Tokenizer.from_json(data), vocabulary.eot)
    added = tuple(token["content"] for token in _ordinary_added_tokens(vocabulary))
    encoder = ExactEncoder(fast, reference, replace(scheme, added=added))
    different = trial(vocabulary, encoder)
    if different is not None:
        raise CannotEncodeError(f"gigatoken encodes {different!r} differently")
    return encoder


def gigatoken_json(tokenizer: TokenizerJson) -> bytes:
    """Returns the tokenizer.json without added tokens, which gigatoken would match in text.

    Vocabulary entries with characters that do not represent bytes are left out too: no text
    contains one in a byte-level tokenizer, but gigatoken would read them as UTF-8.
    """
    model = tokenizer.content["model"]
    alphabet = _alphabet()
    vocab = {text: id_ for text, id_ in model["vocab"].items() if alphabet.issuperset(text)}
    merges = [pair for pair in _merges(model) if "".join(pair) in vocab]
    smaller = {"added_tokens": [], "model": model | {"vocab": vocab, "merges": merges}}
    return json.dumps(tokenizer.content | smaller).encode()


def obstacles(tokenizer: TokenizerJson) -> list[str]:
    """Reasons why gigatoken's tokens would or might differ; empty if there are none.

    Only for byte-level BPE, which the table of differences ensures.
    """
    model = tokenizer.content["model"]
    vocab, merges = model["vocab"], _merges(model)
    reasons = []
    missing = len(_alphabet() - vocab.keys())
    if missing:
        reasons.append(f"{missing} of the 256 bytes have no token")
    results = [vocab["".join(pair)] for pair in merges]
    if any(before > after for before, after in pairwise(results)):
        reasons.append("its merges are not in the order of the ids")
    if len(set(merges)) < len(merges):
        reasons.append("it lists a merge twice")
    added = _ordinary_added_tokens(tokenizer)
    if len(added) > _MOST_ADDED:
        reasons.append(f"it has {len(added):,} added tokens")
    normalizes = json.loads(tokenizer.pattern)["normalizer"] is not None
    for token in added[:_MOST_ADDED]:
        if token.get("single_word") or (normalizes and token.get("normalized")):
            reasons.append(f"{token['content']!r} matches only as a word, or after normalization")
    return reasons


# Tokens joined to one text of a trial.
_JOINED = 100


def trial(tokenizer: TokenizerJson, encoder: Encoder) -> str | None:
    """Returns the first text made of the vocabulary that an encoder's reference encodes otherwise.

    Among them are texts of special tokens: one that merges result in is refused by the reference.
    """
    texts = list(_trial_texts(tokenizer))
    strings = pa.array(texts, pa.large_string())
    ours, exact = encoder.encode(strings), encoder.reference.encode(strings)
    if np.array_equal(ours.offsets, exact.offsets) and np.array_equal(ours.tokens, exact.tokens):
        return None
    return next(
        text
        for index, text in enumerate(texts)
        if not np.array_equal(ours.document(index), exact.document(index))
    )


def _trial_texts(tokenizer: TokenizerJson) -> Iterator[str]:
    """Every token, runs of tokens, texts in which two merges compete, and special tokens."""
    model = tokenizer.content["model"]
    tokens = list(_decoded(model["vocab"]))
    yield from tokens
    for start in range(0, len(tokens), _JOINED):
        yield "".join(tokens[start : start + _JOINED])
    yield from _decoded(map("".join, _competing(_merges(model))))
    for text, _ in tokenizer.special_tokens:
        yield from (text, f"x{text}y", f" {text} \n{text}\n", f"e{text}\u0301", text[:-1], text * 2)


def _competing(merges: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Three tokens of which the first two and the last two merge to the same token.

    tokenizers applies the merge that is first in the list, gigatoken the one first in the text.
    """
    by_result = defaultdict(list)
    for pair in merges:
        by_result["".join(pair)].append(pair)
    for pairs in by_result.values():
        second = dict(pairs)
        for left, middle in pairs:
            if middle in second:
                yield left, middle, second[middle]


def _alphabet() -> set[str]:
    """The characters that stand for bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return set(ByteLevel.alphabet())


def _decoded(tokens: Iterable[str]) -> Iterator[str]:
    """The texts of tokens that are whole characters."""
    from tokenizers.decoders import ByteLevel

    alphabet, decoder = _alphabet(), ByteLevel()
    texts = (decoder.decode([token]) for token in tokens if alphabet.issuperset(token))
    return (text for text in texts if "\ufffd" not in text)


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges as pairs. Older files have one string per merge."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in pairs]


def _ordinary_added_tokens(tokenizer: TokenizerJson) -> list[dict[str, Any]]:
    return [token for token in tokenizer.added_tokens if not token.get("special")]
