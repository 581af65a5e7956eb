"""What gigatoken is given of a tokenizer.json, and which files it is not given at all.

gigatoken reads less of the file than `tokenizers` does, and merges in the order of ids instead of
in that of the list. What would silently come out otherwise is refused here. That both split alike
is shown by the table of differences; that they merge alike is tried out here as well, on texts made
of the vocabulary itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from fineshards.encoders.byte_level import ALPHABET, to_bytes
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.tokenizer_json import TokenizerJson

# Tokens joined to one text of a trial, and added tokens of which all pairs are tried.
_JOINED = 100
_PAIRED = 40


def gigatoken_json(tokenizer: TokenizerJson) -> bytes:
    """A tokenizer.json for gigatoken that leaves it no special token to find in a text.

    Vocabulary entries in other characters than those of bytes are left out too: no text of a
    byte-level tokenizer becomes one, but gigatoken would take them for UTF-8.
    """
    model = tokenizer.content["model"]
    vocab = {text: id_ for text, id_ in model["vocab"].items() if to_bytes(text) is not None}
    merges = [pair for pair in _merges(model) if "".join(pair) in vocab]
    # The library's own ids: those that the file gives to added tokens are not always used.
    added = [
        {**token, "id": tokenizer.library.token_to_id(token["content"])}
        for token in _ordinary_added_tokens(tokenizer)
    ]
    content = tokenizer.content | {
        "added_tokens": added,
        "model": model | {"vocab": vocab, "merges": merges},
    }
    return json.dumps(content).encode()


def obstacles(tokenizer: TokenizerJson) -> list[str]:
    """Why gigatoken would give other tokens, or may, in words; empty if nothing speaks for that.

    For byte-level BPE; whether it is that, the table of differences knows.
    """
    model = tokenizer.content["model"]
    vocab, merges = model["vocab"], _merges(model)
    found = []
    missing = sum(character not in vocab for character in ALPHABET)
    if missing:
        found.append(f"{missing} of the 256 bytes have no token")
    results = [vocab["".join(pair)] for pair in merges]
    if any(before > after for before, after in pairwise(results)):
        found.append("its merges do not come in the order of the ids")
    if len(set(merges)) < len(merges):
        found.append("it lists a merge twice")
    return found + _obstacles_of_added_tokens(tokenizer)


def _obstacles_of_added_tokens(tokenizer: TokenizerJson) -> list[str]:
    """gigatoken looks for added tokens in the raw text, all at once, for the longest there."""
    added = _ordinary_added_tokens(tokenizer)
    found = []
    if any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word")):
        found.append("some of its added tokens are found only as words, or take spaces with them")
    late = [str(token["content"]) for token in added if token.get("normalized")]
    early = [str(token["content"]) for token in added if not token.get("normalized")]
    if late and _has_normalizer(tokenizer):
        found.append("some of its added tokens are looked for only after normalization")
    if _run_into(late, early):
        # tokenizers finds the early ones first, wherever they stand.
        found.append("the texts of some of its added tokens overlap")
    if _run_into([text for text, _ in tokenizer.special_tokens], early + late):
        # tokenizers finds the special one, does nothing with it, and goes on behind it.
        found.append("the texts of special and of other added tokens overlap")
    return found


def _run_into(texts: list[str], others: list[str]) -> bool:
    """Whether one of `others` can begin within an occurrence of one of `texts`."""
    beginnings = {other[:end] for other in others for end in range(1, len(other) + 1)}
    return any(
        text[start:] in beginnings or text.startswith(tuple(others), start)
        for text in texts
        for start in range(len(text))
    )


def trial(tokenizer: TokenizerJson, fast: Encoder, reference: Encoder) -> str | None:
    """The first text made of the vocabulary that two encoders do not encode alike, or None."""
    texts = list(_trial_texts(tokenizer))
    strings = pa.array(texts, pa.large_string())
    ours, theirs = fast.encode(strings), reference.encode(strings)
    if np.array_equal(ours.offsets, theirs.offsets) and np.array_equal(ours.tokens, theirs.tokens):
        return None
    return next(
        text
        for index, text in enumerate(texts)
        if not np.array_equal(ours.document(index), theirs.document(index))
    )


def _trial_texts(tokenizer: TokenizerJson) -> Iterator[str]:
    """Every token, tokens in a row, texts where two merges compete, added tokens everywhere."""
    model = tokenizer.content["model"]
    tokens = [text for token in model["vocab"] if (text := _text(token)) is not None]
    yield from tokens
    for start in range(0, len(tokens), _JOINED):
        yield "".join(tokens[start : start + _JOINED])
    for parts in _competing(_merges(model)):
        text = _text("".join(parts))
        if text is not None:
            yield text
    added = [str(token["content"]) for token in _ordinary_added_tokens(tokenizer)]
    added += [text for text, _ in tokenizer.special_tokens]
    for text in added:
        yield from (text, f"x{text}y", f" {text} \n{text}\n", f"e{text}\u0301", text[:-1], text * 2)
        yield from (text + other for other in added[:_PAIRED])


def _competing(merges: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Three tokens of which the first two and the last two merge to the same token.

    tokenizers takes the merge that is listed first, gigatoken the one that stands first.
    """
    made = defaultdict(list)
    for pair in merges:
        made["".join(pair)].append(pair)
    for pairs in made.values():
        second = dict(pairs)
        for left, middle in pairs:
            if middle in second:
                yield left, middle, second[middle]


def _text(token: str) -> str | None:
    raw = to_bytes(token)
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges, of which older files make one string each."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in pairs]


def _ordinary_added_tokens(tokenizer: TokenizerJson) -> list[dict[str, Any]]:
    tokens = tokenizer.content.get("added_tokens") or []
    return [token for token in tokens if not token.get("special")]


def _has_normalizer(tokenizer: TokenizerJson) -> bool:
    return json.loads(tokenizer.pattern)["normalizer"] is not None
