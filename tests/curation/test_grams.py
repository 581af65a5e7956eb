"""Repeated n-grams: the arithmetic on numbers against counting strings."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.curation.words import grams
from fineshards.curation.words.grams import repeated_characters, top_characters
from fineshards.curation.words.word_ids import BASE, Words, WordTable, hashes_of

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 10)
# Few and short, so that n-grams repeat, and so that different words are the same when joined.
few = st.lists(st.sampled_from(["a", "b", "ab", "ba", "aa", "é", "\U0001f600"]), max_size=60)


def numbered(strings: list[str]) -> Words:
    vocabulary = WordTable()
    vocabulary.number(["something", "else"])
    return Words(vocabulary, vocabulary.number(strings))


def top(strings: list[str], n: int) -> int | None:
    found = [" ".join(strings[i : i + n]) for i in range(len(strings) - n + 1)]
    if not found:
        return None
    text, count = Counter(found).most_common(1)[0]
    return len(text) * count


def repeated(strings: list[str], n: int) -> int:
    seen, total, index = [], 0, 0
    while index < len(strings) - n + 1:
        text = "".join(strings[index : index + n])
        total += len(text) if text in seen else 0
        index += n if text in seen else 1
        seen.append(text)
    return total


@given(few)
def test_the_most_frequent_n_gram_is_that_of_counted_strings(strings: list[str]) -> None:
    expected = [top(strings, n) for n in LENGTHS]
    assert top_characters(numbered(strings), LENGTHS) == expected
    assert grams.exact_top_characters(strings, LENGTHS) == expected


@given(few)
def test_repeated_n_grams_are_those_of_a_walk_over_strings(strings: list[str]) -> None:
    expected = [repeated(strings, n) for n in LENGTHS]
    assert repeated_characters(numbered(strings), LENGTHS) == expected
    assert grams.exact_repeated_characters(strings, LENGTHS) == expected


@given(few, st.integers(0, 40))
def test_what_may_be_ignored_stays_below_its_limit(strings: list[str], limit: int) -> None:
    found = repeated_characters(numbered(strings), LENGTHS, [limit] * len(LENGTHS))
    for n, characters in zip(LENGTHS, found, strict=True):
        expected = repeated(strings, n)
        assert characters == expected or expected <= characters <= limit


@given(few)
def test_a_collision_of_hashes_changes_nothing(strings: list[str]) -> None:
    words = numbered(strings)
    # All words hash to the same.
    words.vocabulary.hashes._array[:] = 7
    words.vocabulary.powers._array[:] = 1
    assert top_characters(words, LENGTHS) == [top(strings, n) for n in LENGTHS]
    assert repeated_characters(words, LENGTHS) == [repeated(strings, n) for n in LENGTHS]


def test_one_other_character_changes_the_high_bits() -> None:
    words = [f"{a}x{b}" for a in "abcdefgh" for b in "abcdefgh"]
    assert len({each >> 24 for each in hashes_of(words).tolist()}) == len(words)


def test_the_hash_of_joined_words_follows_from_theirs() -> None:
    words = ["a", "naïve", "\U0001f600", "of\ud800", "z" * 100]
    joined, power = 0, 1
    for word, each in zip(words, hashes_of(words).tolist(), strict=True):
        joined = (joined + power * each) % 2**64
        power = power * pow(int(BASE), len(word), 2**64) % 2**64
    assert hashes_of(["".join(words)]).tolist() == [joined]


def test_different_words_are_the_same_n_gram_when_joined() -> None:
    strings = ["ab", "c", "x", "a", "bc", "x"]
    assert repeated_characters(numbered(strings), (2, 3)) == [3, 4]
    assert top_characters(numbered(strings), (2,)) == [4]


def test_a_hit_skips_all_its_words() -> None:
    assert repeated_characters(numbered(["a"] * 7), (2,)) == [6]


def test_words_with_spaces_are_compared_as_joined() -> None:
    strings = ["a b", "c", "a", "b c"]
    assert top_characters(numbered(strings), (2,)) == [10]


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 70_000])
def test_texts_of_any_length(count: int) -> None:
    strings = [f"w{x}" for x in np.random.default_rng(count).integers(0, 300, count)]
    words = numbered(strings)
    assert top_characters(words, (2, 3)) == grams.exact_top_characters(strings, (2, 3))
    lengths = (2, 3, 5)
    assert repeated_characters(words, lengths) == grams.exact_repeated_characters(strings, lengths)
