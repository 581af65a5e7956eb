"""Repeated n-grams of words, counted in characters, by sorting numbers instead of strings.

Each n-gram gets a hash that follows from those of its words. Sorted, equal ones are neighbours, and
neighbours are compared word by word, so that no collision can count. `exact` functions count the
same in plain Python: for the rare text that has a collision, and to be compared with.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.curation.words.word_ids import BASE, SPACED, Words, hashes_of

_ONE = np.uint64(1)
# The hash of the space that is between two words of a joined n-gram.
_SPACE = hashes_of([" "])[0]


class SortedNgrams(NamedTuple):
    """The n-grams of one length in the order of their hashes.

    places: where each begins, int64, shape (m,). same: whether each but the first is the same as
    the one before, shape (m - 1,). Of the same n-grams the first in the text comes first.
    """

    places: npt.NDArray[np.int64]
    same: npt.NDArray[np.bool_]


def top_characters(words: Words, lengths: Sequence[int]) -> list[int | None]:
    """The characters of the most frequent n-gram in all its places, for each length n.

    Its words are joined by spaces. Of those that are equally frequent the first in the text counts.
    None if the text is shorter than n words.
    """
    vocabulary, numbers = words
    if vocabulary.spaced and (vocabulary.properties[numbers] & SPACED).any():
        # Other words may be the same when joined.
        return exact_top_characters(words.strings, lengths)
    hashes = vocabulary.hashes[numbers]
    powers = vocabulary.powers[numbers]
    repeats = _repeats(hashes + _SPACE * powers, powers * BASE, lengths)
    characters = vocabulary.lengths[numbers]
    counts: list[int | None] = []
    for n, repeat in zip(lengths, repeats, strict=True):
        if not len(repeat.places):
            counts.append(None)
            continue
        first, count = 0, 1
        if repeat.same.any():
            if not _equal(numbers, repeat, n).all():
                return exact_top_characters(words.strings, lengths)
            starts = np.concatenate([[0], np.flatnonzero(~repeat.same) + 1])
            runs = np.diff(starts, append=len(repeat.places))
            count = int(runs.max())
            first = int(repeat.places[starts[runs == count]].min())
        counts.append((int(characters[first : first + n].sum()) + n - 1) * count)
    return counts


def repeated_characters(
    words: Words, lengths: Sequence[int], ignored: Sequence[float] | None = None
) -> list[int]:
    """The characters of n-grams that have been there before, for each length n.

    The text is walked from its beginning. A new n-gram is remembered, and the walk goes on with the
    next word; one that is remembered counts, and the walk goes on after it. N-grams are the same if
    their words, joined by nothing, are the same.

    ignored: for each length, characters up to which the result may be any number up to it.
    """
    vocabulary, numbers = words
    repeats = _repeats(vocabulary.hashes[numbers], vocabulary.powers[numbers], lengths)
    if not any(repeat.same.any() for repeat in repeats):
        return [0] * len(lengths)
    offsets = np.concatenate([[0], np.cumsum(vocabulary.lengths[numbers])])
    counts = []
    for index, (n, repeat) in enumerate(zip(lengths, repeats, strict=True)):
        later = repeat.places[1:][repeat.same]
        if not later.size:
            counts.append(0)
            continue
        covered = _covered(later, n, offsets)
        if ignored is not None and covered <= ignored[index]:
            counts.append(covered)
            continue
        if not _equal_joined(words, repeat, n):
            return exact_repeated_characters(words.strings, lengths)
        counts.append(_walk(repeat, n, offsets))
    return counts


def exact_top_characters(words: Sequence[str], lengths: Sequence[int]) -> list[int | None]:
    """The same as `top_characters`, in plain Python."""
    totals: list[int | None] = []
    for n in lengths:
        counts: dict[str, int] = {}
        for start in range(len(words) - n + 1):
            joined = " ".join(words[start : start + n])
            counts[joined] = counts.get(joined, 0) + 1
        # max takes the first of several.
        top = max(counts, key=counts.__getitem__, default=None)
        totals.append(None if top is None else len(top) * counts[top])
    return totals


def exact_repeated_characters(words: Sequence[str], lengths: Sequence[int]) -> list[int]:
    """The same as `repeated_characters`, in plain Python."""
    totals = []
    for n in lengths:
        remembered: set[str] = set()
        characters = start = 0
        while start + n <= len(words):
            joined = "".join(words[start : start + n])
            if joined in remembered:
                characters += len(joined)
                start += n
            else:
                remembered.add(joined)
                start += 1
        totals.append(characters)
    return totals


def _repeats(
    hashes: npt.NDArray[np.uint64], powers: npt.NDArray[np.uint64], lengths: Sequence[int]
) -> list[SortedNgrams]:
    """The n-grams of each length, by hashes of the words and BASE to the power of their lengths."""
    count = len(hashes)
    bits = np.uint64(max(1, (count - 1).bit_length()))
    place = np.arange(count, dtype=np.uint64)
    # Row by row: the high bits of the hash, then the place. What is beyond the last n-gram has the
    # greatest hash and the greatest places, so it is last when sorted.
    keys = np.full((len(lengths), count), ~np.uint64(0))
    joined, n = hashes, 1
    for row, length in sorted(enumerate(lengths), key=lambda item: item[1]):
        while n < length and len(joined):
            # One word, then the n-gram after it.
            joined = hashes[: len(joined) - 1] + powers[: len(joined) - 1] * joined[1:]
            n += 1
        keys[row, : len(joined) if n == length else 0] = joined if n == length else 0
    keys = (keys >> bits << bits) | place
    keys.sort(axis=1)
    same = (keys[:, 1:] ^ keys[:, :-1]) >> bits == 0
    places = (keys & ((_ONE << bits) - _ONE)).astype(np.int64)
    sizes = [max(0, count - length + 1) for length in lengths]
    return [
        SortedNgrams(places[row, :size], same[row, : max(0, size - 1)])
        for row, size in enumerate(sizes)
    ]


def _equal(numbers: npt.NDArray[np.uint32], repeat: SortedNgrams, n: int) -> npt.NDArray[np.bool_]:
    """Whether the neighbours that have the same hash have the same words."""
    first = repeat.places[:-1][repeat.same]
    second = repeat.places[1:][repeat.same]
    equal = np.ones(len(first), np.bool_)
    for step in range(n):
        equal &= numbers[first + step] == numbers[second + step]
    return equal


def _equal_joined(words: Words, repeat: SortedNgrams, n: int) -> bool:
    """Whether the neighbours that have the same hash are the same when joined."""
    vocabulary, numbers = words
    other = np.flatnonzero(~_equal(numbers, repeat, n))
    places = np.flatnonzero(repeat.same)[other]

    def joined(place: int) -> str:
        return "".join(vocabulary.words[x] for x in numbers[place : place + n].tolist())

    pairs = zip(repeat.places[places].tolist(), repeat.places[places + 1].tolist(), strict=True)
    return all(joined(first) == joined(second) for first, second in pairs)


def _covered(later: npt.NDArray[np.int64], n: int, offsets: npt.NDArray[np.int64]) -> int:
    """The characters of all words in n-grams that begin at `later`: at least what a walk counts."""
    begins = np.sort(later)
    ends = begins + n
    # Where the next n-gram begins before this one ends, only the part before it counts here.
    ends[:-1] = np.minimum(ends[:-1], begins[1:])
    return int((offsets[ends] - offsets[begins]).sum())


def _walk(repeat: SortedNgrams, n: int, offsets: npt.NDArray[np.int64]) -> int:
    """Walks from n-gram to n-gram, looking only at those that are there more than once."""
    several = np.zeros(len(repeat.places), np.bool_)
    several[1:] |= repeat.same
    several[:-1] |= repeat.same
    group = np.cumsum(~np.concatenate([[False], repeat.same]))[several]
    places = repeat.places[several]
    order = np.argsort(places)
    remembered: set[int] = set()
    characters = after = 0
    for place, number in zip(places[order].tolist(), group[order].tolist(), strict=True):
        if place < after:
            continue
        if number in remembered:
            after = place + n
            characters += int(offsets[after] - offsets[place])
        else:
            remembered.add(number)
    return characters


def repeated_parts(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts (lines, paragraphs) equal an earlier one, and their characters."""
    distinct = set(parts)
    if len(distinct) == len(parts):
        return 0, 0
    characters = sum(map(len, parts)) - sum(map(len, distinct))
    return len(parts) - len(distinct), characters
