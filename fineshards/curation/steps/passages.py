"""Passages that occurred earlier, wherever they stand in a text.

Windows of n words are hashed, and of each w windows in a row the one with the smallest hash has a
key (winnowing). So two texts that share n + w - 1 words in a row share a key, whatever is around
them, and 2 / (w + 1) of the words begin a window with a key. n + w - 1 is `min_words`, and w a
third of it.

A window's hash is that of a shingle of `minhash`; of equal ones the last counts. Its key is the
XXH3-128 of the hashes of its words, of 8 bytes each: little-endian, and big-endian of characters.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal
from unicodedata import unidata_version

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest, xxh3_128_digest

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Count, whole
from fineshards.curation.step import KeyedSpans, Keys
from fineshards.curation.steps.exact_duplicates import (
    as_keys,
    columns_of,
    of_group,
    one_or_column,
)
from fineshards.curation.steps.minhash import shingle_hashes
from fineshards.curation.words.normal_form import batch_hashes, joined

_WORDS = {"space": re.compile(r"\S+"), "characters": re.compile(r"\S")}


@dataclass(frozen=True)
class Passages(KeyedSpans, name="passages"):
    """Cuts passages that an earlier document has, or the same one before, wherever they stand.

    Every passage of `min_words` words that occurred earlier is found, and nothing shorter than two
    thirds of that is cut. Of a passage, fewer than a third of `min_words` may be left at each end.
    Words are compared as by `minhash`: case counts only in words that mix it, and white space
    never. White space before a cut stays. A passage that repeats itself without a break is cut back
    to its beginning.

    Args:
        min_words: The least number of words of a passage.
        words: What a word is. "space": what stands between white space. "characters": each
            character, in lower case, for languages without spaces.
        min_doc_words: A document of which something was cut is dropped if it has fewer words left.
            0: it is dropped only if nothing is left.
        within: Which documents are compared with each other; see `exact`. "document": none, so
            that only what a document itself repeats is cut.

    Example:
        >>> step = Passages(min_words=3, min_doc_words=0)
        >>> step.cut("News of today. All rights reserved. And more.", [3])
        ('News of today. And more.', '')
    """

    min_words: Annotated[int, whole(3, 1000)] = 50
    words: Literal["space", "characters"] = "space"
    min_doc_words: Count = 50
    within: Annotated[str, one_or_column("all", "file", "document")] = "all"

    @property
    def columns(self) -> tuple[str, ...]:
        return columns_of(self.within)

    def pins(self) -> dict[str, str]:
        return {"unicode": unidata_version}

    @property
    def _group(self) -> int:
        """How many windows in a row have a key at least."""
        return (self.min_words + 1) // 3

    @property
    def _window(self) -> int:
        """Words of a window."""
        return self.min_words + 1 - self._group

    def keys(self, batch: Batch) -> Keys:
        documents = self._hashes(batch)
        long = [n for n, hashes in enumerate(documents) if len(hashes) >= 8 * self.min_words]
        words, sizes = joined([documents[owner] for owner in long])
        windows, bounds = shingle_hashes(words, sizes, self._window)
        chosen = winnowed(windows, bounds, self._group)
        numbers = np.searchsorted(bounds, chosen, side="right") - 1
        spans = chosen - bounds[numbers]
        begins = ((np.cumsum(sizes) - sizes)[numbers] + spans).tolist()
        view, size = words.data, self._window
        digests = [xxh3_128_digest(view[begin : begin + size]) for begin in begins]
        owners = np.array(long, np.int64)[numbers]
        keys = of_group(as_keys(digests), owners, batch, self.within)
        if self.within == "document":
            # A key that occurs once decides nothing.
            _, kinds, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
            repeated = counts[kinds.reshape(-1)] > 1
            keys, owners, spans = keys[repeated], owners[repeated], spans[repeated]
        return Keys(keys, owners, spans.astype(np.uint32))

    def _hashes(self, batch: Batch) -> list[bytes]:
        """For each text, the hashes of its words, joined."""
        if self.words == "space":
            return batch_hashes(batch, "space", "keep")
        return [b"".join(map(_character_hash, text)) for text in batch.strings]

    def cut(self, text: str, spans: Sequence[int]) -> tuple[str | None, str]:
        bounds, runs = self._runs(text, spans)
        left = len(bounds) - sum(end - begin for begin, end in runs)
        if not left:
            return None, "nothing_left"
        if left < self.min_doc_words:
            return None, "too_few_words"
        parts, place = [], 0
        for begin, end in runs:
            parts.append(text[place : bounds[begin][0]])
            place = bounds[end][0] if end < len(bounds) else len(text)
        rest = "".join([*parts, text[place:]])
        return (rest.rstrip() if place == len(text) else rest), ""

    def removed(self, text: str, spans: Sequence[int]) -> list[str]:
        bounds, runs = self._runs(text, spans)
        return [text[bounds[begin][0] : bounds[end - 1][1]] for begin, end in runs]

    def _runs(
        self, text: str, spans: Sequence[int]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Where each word begins and ends, and the first and the end of each run of cut words."""
        bounds = [word.span() for word in _WORDS[self.words].finditer(text)]
        cut = np.zeros(len(bounds) + 2, np.int8)
        for span in spans:
            cut[span + 1 : span + 1 + self._window] = 1
        edges = np.flatnonzero(np.diff(cut)).tolist()
        return bounds, list(zip(edges[::2], edges[1::2], strict=True))


@lru_cache(maxsize=1 << 16)
def _character_hash(character: str) -> bytes:
    return b"" if character.isspace() else xxh3_64_digest(character.lower().encode())


def winnowed(
    hashes: npt.NDArray[np.uint64], bounds: npt.NDArray[np.int64], group: int
) -> npt.NDArray[np.int64]:
    """The place of the smallest hash, of equal ones the last, among each `group` in a row.

    Where the same hash follows itself, as in rows of zeros, only one in each `group` is taken.

    hashes: of all documents, each of which has at least `group`. bounds: the first of each
    document, and the end.

    Example:
        >>> hashes = np.array([5, 3, 4, 3, 9, 8], np.uint64)
        >>> winnowed(hashes, np.array([0, 4, 6]), 2).tolist()
        [1, 3, 5]
    """
    starts = np.ones(len(hashes), np.bool_)
    for end in bounds[1:].tolist():
        starts[end - group + 1 : end] = False
    first = np.flatnonzero(starts)
    least = first
    for offset in range(1, group):
        other = first + offset
        least = np.where(hashes[other] <= hashes[least], other, least)
    chosen = np.unique(least)
    documents = np.searchsorted(bounds, chosen, side="right")
    again = (np.diff(hashes[chosen]) == 0) & (np.diff(documents) == 0)
    between = np.zeros(len(chosen), np.bool_)
    between[1:-1] = again[1:] & again[:-1]
    places: list[int] = []
    for number, place in enumerate(chosen.tolist()):
        if not between[number] or chosen[number + 1] - places[-1] > group:
            places.append(place)
    return np.array(places, np.int64)
