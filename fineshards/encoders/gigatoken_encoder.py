"""The fast tokenizer: gigatoken, a whole Arrow array per call, and the files that it reads exactly.

`fineshards/encoders/checked_encoder.py` uses it only where it is exact: the table of differences
ensures that both libraries split alike. Of a tokenizer.json gigatoken reads less than `tokenizers`
does, and it merges in the order of ids instead of the order of the list. Files whose tokens would
silently differ are refused here, and merges are compared on texts made of the vocabulary itself.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gigatoken
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.cores import usable_cores
from fineshards.encoders.differences import string_buffers
from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.encoders.tokenizer_json import TokenizerJson
from fineshards.storage.temporary import scratch_folder

# gigatoken 0.10 caches every pretoken that it has seen (its issue 36). So after REBUILD_SECONDS of
# work a tokenizer is rebuilt, if the process has grown large. Unseen text costs both memory and
# time, so processor time bounds the memory. Measured: in four seconds, random letters, the worst
# case found, cost 0.7 GB. Web text costs 0.2 GB and then hardly more, and its cache is worth
# keeping: with it and the tokens that it keeps, a worker of 20 GB of text has 0.6 GB.
REBUILD_SECONDS = 4.0
REBUILD_BYTES = 768 << 20  # of the process, per tokenizer in it


def from_ranks(ranks: bytes, scheme: str) -> gigatoken.Tokenizer:
    """Builds gigatoken's tokenizer from a rank file without holes.

    scheme: gigatoken's name for the way of splitting. Raises RuntimeError if it rejects the ranks.
    """
    with scratch_folder() as folder, _no_panic():
        file = os.path.join(folder, "ranks.tiktoken")
        with open(file, "wb") as opened:
            opened.write(ranks)
        # No special tokens, because gigatoken would match them in text.
        return gigatoken.Tokenizer.from_tiktoken(file, scheme, {})


def from_json(data: bytes) -> gigatoken.Tokenizer:
    """Builds gigatoken's tokenizer from a tokenizer.json; raises RuntimeError if it rejects it."""
    with _no_panic():
        return gigatoken.Tokenizer.from_json(data)


@contextmanager
def _no_panic() -> Iterator[None]:
    """Turns Rust panics, whose class is not an Exception, into RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise RuntimeError(str(error)) from error


def _is_large(tokenizers: int) -> bool:
    """Whether this process uses much memory per tokenizer; True where that is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return True
    return pages * os.sysconf("SC_PAGE_SIZE") >= REBUILD_BYTES * tokenizers


class GigatokenTokenizer:
    """gigatoken with bounded memory, for any number of threads.

    Concurrent calls on one gigatoken tokenizer wait for each other, so each call gets its own.
    There are at most as many as cores, because more would only use memory.
    """

    def __init__(self, make: Callable[[], gigatoken.Tokenizer], eot: int) -> None:
        """`make` builds a gigatoken tokenizer, and is called for each one.

        It is called once here, so that a tokenizer that cannot be built fails before a job begins.
        """
        self._make = make
        self._eot = np.uint32(eot)
        self.name = f"gigatoken {version('gigatoken')}"
        self._idle = [make()]
        # Of processor time that each has worked.
        self._seconds = dict.fromkeys(self._idle, 0.0)
        self._free = threading.BoundedSemaphore(usable_cores())

    def encode(self, texts: pa.Array) -> TokenBatch:
        """See `Encoder.encode`."""
        with self._tokenizer() as tokenizer, _awkward() as ak:
            began = time.thread_time()
            found = tokenizer.encode_batch(ak.from_arrow(texts), parallel=False)
            self._seconds[tokenizer] += time.thread_time() - began
            tokens, lengths = ak.to_numpy(ak.flatten(found)), ak.to_numpy(ak.num(found))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.insert(tokens, ends[:-1], self._eot)
        return TokenBatch(tokens, ends + np.arange(len(ends)), by_reference=0)

    @contextmanager
    def _tokenizer(self) -> Iterator[gigatoken.Tokenizer]:
        with self._free:
            tokenizer = self._idle.pop() if self._idle else self._make()
            self._seconds.setdefault(tokenizer, 0.0)
            is_kept = False  # unless it has worked without an error
            try:
                yield tokenizer
                seconds = self._seconds[tokenizer]
                is_kept = seconds < REBUILD_SECONDS or not _is_large(len(self._seconds))
            finally:
                if is_kept:
                    self._idle.append(tokenizer)
                else:
                    del self._seconds[tokenizer]


def _strings(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    offsets, data = string_buffers(texts)
    return data[offsets[0] : offsets[-1]], np.diff(offsets)


# All that is called of awkward. Lists are a pair: the items of all, and how many each has.
_STAND_IN: Any = SimpleNamespace(
    Array=tuple,
    from_arrow=_strings,
    without_parameters=lambda lists: lists,
    flatten=itemgetter(0),
    num=itemgetter(1),
    to_numpy=lambda array: array,
    unflatten=lambda *lists: lists,
)


@contextmanager
def _awkward() -> Iterator[Any]:
    """The module with which gigatoken takes and gives arrays without copies.

    gigatoken imports awkward in each call, which takes 0.1 s at first. Where no other thread can
    see it, a stand-in is there meanwhile.
    """
    if "awkward" in sys.modules or threading.active_count() > 1:
        import awkward

        yield awkward
        return
    sys.modules["awkward"] = _STAND_IN
    try:
        yield _STAND_IN
    finally:
        del sys.modules["awkward"]


def _alphabet() -> list[str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


# The character for each byte.
ALPHABET = tuple(_alphabet())
_BYTES = {character: byte for byte, character in enumerate(ALPHABET)}


def to_bytes(token: str) -> bytes | None:
    """Decodes a vocabulary token to its bytes; None if it contains other characters."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return None


# Tokens joined to one text of a trial, and added tokens that are combined in pairs.
_JOINED = 100
_PAIRED = 40


def gigatoken_json(tokenizer: TokenizerJson) -> bytes:
    """Returns the tokenizer.json without special tokens, which gigatoken would match in text.

    Vocabulary entries with characters that do not represent bytes are left out too: no text
    contains one in a byte-level tokenizer, but gigatoken would read them as UTF-8.
    """
    model = tokenizer.content["model"]
    vocab = {text: id_ for text, id_ in model["vocab"].items() if to_bytes(text) is not None}
    merges = [pair for pair in _merges(model) if "".join(pair) in vocab]
    # The library's own ids, because it does not always use the file's ids of added tokens.
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
    """Reasons why gigatoken's tokens would or might differ; empty if there are none.

    Only for byte-level BPE, which the table of differences ensures.
    """
    model = tokenizer.content["model"]
    vocab, merges = model["vocab"], _merges(model)
    found = []
    missing = sum(character not in vocab for character in ALPHABET)
    if missing:
        found.append(f"{missing} of the 256 bytes have no token")
    results = [vocab["".join(pair)] for pair in merges]
    if any(before > after for before, after in pairwise(results)):
        found.append("its merges are not in the order of the ids")
    if len(set(merges)) < len(merges):
        found.append("it lists a merge twice")
    return found + _obstacles_of_added_tokens(tokenizer)


def _obstacles_of_added_tokens(tokenizer: TokenizerJson) -> list[str]:
    """Reasons among added tokens: gigatoken matches all of them in the raw text, longest first."""
    added = _ordinary_added_tokens(tokenizer)
    found = []
    if any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word")):
        found.append("some of its added tokens match only as words, or include adjacent spaces")
    late = [str(token["content"]) for token in added if token.get("normalized")]
    early = [str(token["content"]) for token in added if not token.get("normalized")]
    if late and json.loads(tokenizer.pattern)["normalizer"] is not None:
        found.append("some of its added tokens match only after normalization")
    if _overlap(late, early):
        # tokenizers matches the early ones first, anywhere in the text.
        found.append("the texts of some of its added tokens overlap")
    if _overlap([text for text, _ in tokenizer.special_tokens], early + late):
        # tokenizers matches the special token, leaves it as text, and continues after it.
        found.append("the texts of its special tokens and other added tokens overlap")
    return found


def _overlap(texts: list[str], others: list[str]) -> bool:
    """Whether one of `others` can begin within an occurrence of one of `texts`."""
    prefixes = {other[:end] for other in others for end in range(1, len(other) + 1)}
    return any(
        text[start:] in prefixes or text.startswith(tuple(others), start)
        for text in texts
        for start in range(len(text))
    )


def trial(tokenizer: TokenizerJson, fast: Encoder, reference: Encoder) -> str | None:
    """Returns the first text made of the vocabulary that the encoders encode differently."""
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
    """Every token, runs of tokens, texts in which two merges compete, and added tokens."""
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

    tokenizers applies the merge that is first in the list, gigatoken the one first in the text.
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
    """The merges as pairs. Older files have one string per merge."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in pairs]


def _ordinary_added_tokens(tokenizer: TokenizerJson) -> list[dict[str, Any]]:
    tokens = tokenizer.content.get("added_tokens") or []
    return [token for token in tokens if not token.get("special")]
