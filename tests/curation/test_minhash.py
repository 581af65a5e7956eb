"""MinHash keys against their definition in plain Python, and the curve of what they find."""

from functools import reduce
from itertools import pairwise
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fineshards.curation.batch import Batch
from fineshards.curation.steps.minhash import MinHash, minima, multipliers, shingle_hashes
from fineshards.curation.words.normal_form import simplified_words

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def finalized(state: int) -> int:
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def expected_keys(words: list[str], step: MinHash) -> list[int]:
    """The band keys of a document, by the definition in the module's docstring."""
    if not words:
        return []
    hashes = [xxh3_64_intdigest(word.encode()) for word in words]
    n = min(step.n_grams, len(words))
    runs = [hashes[i : i + n] for i in range(len(words) - n + 1)]
    shingles = [
        finalized(reduce(lambda total, word: (total * GOLDEN + word) & MASK, run, len(run)))
        for run in runs
    ]
    count = step.buckets * step.hashes_per_bucket
    factors = [finalized((step.seed + (i + 1) * GOLDEN) & MASK) | 1 for i in range(count)]
    minima = [min(shingle * factor & MASK for shingle in shingles) for factor in factors]
    bands = [
        minima[b * step.hashes_per_bucket :][: step.hashes_per_bucket] for b in range(step.buckets)
    ]
    data = [b"".join(value.to_bytes(8, "little") for value in band) for band in bands]
    return [xxh3_64_intdigest(each, seed) for seed, each in enumerate(data)]


def kept_words(text: str) -> list[str]:
    words = normalize("NFD", text).split()
    return [word if word == "pH" else word.lower() for word in words]


STEPS = st.builds(
    MinHash,
    n_grams=st.integers(1, 7),
    buckets=st.integers(1, 4),
    hashes_per_bucket=st.integers(1, 4),
    seed=st.sampled_from([0, 1, 2**64 - 1]),
    numbers=st.sampled_from(["keep", "alike"]),
)
TEXTS = st.lists(
    st.sampled_from(["a", "B", "c", "É", "E\u0301", "…", "pH", "PH", "x-y", "12"]), max_size=12
).map(" ".join)


@given(STEPS, st.lists(TEXTS, max_size=8))
def test_keys_are_as_defined(step: MinHash, texts: list[str]) -> None:
    keys = step.keys(Batch.of_texts(texts))
    expected = [
        expected_keys(simplified_words(text) if step.numbers == "alike" else kept_words(text), step)
        for text in texts
    ]
    assert keys.keys.dtype == np.uint64
    assert keys.keys.tolist() == [key for document in expected for key in document]
    owners = [owner for owner, document in enumerate(expected) for _ in document]
    assert keys.owners.tolist() == owners
    assert keys.spans is None


def test_the_keys_of_a_long_document_are_as_defined() -> None:
    """More shingles than a tile has."""
    generator = np.random.default_rng(2)
    words = [f"w{number}" for number in generator.integers(0, 500, 3000)]
    words = ["".join(map(chr, generator.integers(97, 123, 5))) for _ in words]
    step = MinHash()
    batch = Batch.of_texts(["one", " ".join(words), "two three"])
    keys = step.keys(batch).keys.reshape(3, 14)
    assert keys[1].tolist() == expected_keys(words, step)
    assert keys[2].tolist() == expected_keys(["two", "three"], step)


def test_golden_keys() -> None:
    """When this fails, MinHash.VERSION must change."""
    assert MinHash.VERSION == 2
    text = "The quick brown fox jumps over the lazy dog, twice: 3.14 times, in fact."
    keys = MinHash(buckets=2, numbers="alike").keys(Batch.of_texts([text])).keys
    assert [hex(key) for key in keys.tolist()] == ["0x3bbfd815ee08b4c8", "0x91b6141f82ba6196"]


@given(st.lists(TEXTS, min_size=1, max_size=8), st.data())
def test_the_other_documents_of_a_batch_do_not_matter(
    texts: list[str], data: st.DataObject
) -> None:
    step = MinHash(buckets=3, hashes_per_bucket=2)
    together = step.keys(Batch.of_texts(texts))
    cut = data.draw(st.integers(0, len(texts)))
    parts = [step.keys(Batch.of_texts(part)) for part in (texts[:cut], texts[cut:])]
    assert together.keys.tolist() == [key for part in parts for key in part.keys.tolist()]


def test_a_document_without_words_has_no_keys_and_a_short_one_has_those_of_its_words() -> None:
    texts = ["", "…!?", "Hello, world", "hello world!", "world hello", "hello"]
    keys = MinHash(numbers="alike").keys(Batch.of_texts(texts))
    assert keys.owners.tolist() == [2] * 14 + [3] * 14 + [4] * 14 + [5] * 14
    documents = keys.keys.reshape(4, 14)
    assert (documents[0] == documents[1]).all()
    assert len({key for document in documents[[0, 2, 3]].tolist() for key in document}) == 42


def test_a_short_document_never_has_the_shingle_of_a_longer_one() -> None:
    words = np.zeros(9, np.uint64)
    hashes, bounds = shingle_hashes(words, np.array([1, 2, 3, 3]), 3)
    assert bounds.tolist() == [0, 1, 2, 3, 4]
    assert len(set(hashes[:3].tolist())) == 3
    assert hashes[2] == hashes[3]


def test_characters_are_words_where_there_are_no_spaces() -> None:
    step = MinHash(words="characters", numbers="alike")
    keys = step.keys(Batch.of_texts(["吾輩は猫である。", "吾輩 は 猫 である"]))
    assert (keys.keys[:14] == keys.keys[14:]).all()
    assert keys.keys[:14].tolist() == expected_keys(
        list("吾輩は猫て\u3099ある".replace("\u3099", "")), step
    )
    step = MinHash(words="characters")
    keys = step.keys(Batch.of_texts(["猫 である。"])).keys
    assert keys.tolist() == expected_keys(list("猫て\u3099ある。"), step)


def test_multipliers_are_odd_and_differ_by_seed() -> None:
    first, second = multipliers(1, 112), multipliers(2, 112)
    assert (first & np.uint64(1)).all()
    assert len(set(first.tolist())) == 112
    assert first.tolist() == [finalized((1 + (i + 1) * GOLDEN) & MASK) | 1 for i in range(112)]
    # Seeds that follow each other do not share outputs, as states that follow each other would.
    assert not set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize("sizes", [[1, 1, 598, 3400, 1000], [70_000, 1, 65_535, 1, 1, 200_000], []])
def test_minima_of_many_documents_are_those_of_each(sizes: list[int]) -> None:
    shingles = np.random.default_rng(4).integers(0, 2**64, sum(sizes), np.uint64)
    bounds, factors = np.cumsum([0, *sizes]), multipliers(1, 5)
    expected = [
        (shingles[begin:end, np.newaxis] * factors).min(axis=0) for begin, end in pairwise(bounds)
    ]
    assert minima(shingles, bounds, factors).tolist() == [each.tolist() for each in expected]


def matches(similarity: float, pairs: int, step: MinHash) -> int:
    """How many of some pairs of documents with a Jaccard similarity share a band key.

    The shingles of each pair are random, and `similarity` of them are in both.
    """
    generator = np.random.default_rng(int(similarity * 1000))
    shared = round(300 * similarity)
    own = (300 - shared) // 2
    shingles = generator.integers(0, 2**64, (pairs, shared + 2 * own), np.uint64)
    first, second = (
        shingles[:, : shared + own],
        np.delete(shingles, np.s_[shared : shared + own], 1),
    )
    documents = np.stack([first, second], 1).reshape(2 * pairs, shared + own)
    bounds = np.arange(2 * pairs + 1) * (shared + own)
    found = minima(documents.ravel(), bounds, multipliers(step.seed, 112))
    bands = found.reshape(pairs, 2, step.buckets, step.hashes_per_bucket)
    return int((bands[:, 0] == bands[:, 1]).all(2).any(1).sum())


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("seed", [1, 2])
def test_pairs_are_found_as_often_as_the_curve_says(similarity: float, seed: int) -> None:
    step, pairs = MinHash(seed=seed), 2000
    chance = 1 - (1 - similarity**step.hashes_per_bucket) ** step.buckets
    deviation = (pairs * chance * (1 - chance)) ** 0.5
    assert abs(matches(similarity, pairs, step) - pairs * chance) <= 4 * deviation + 1


def test_bands_are_pairwise_different_even_if_their_minima_are_the_same() -> None:
    keys = MinHash(buckets=14, hashes_per_bucket=1).keys(Batch.of_texts(["x"])).keys.tolist()
    assert all(left != right for left, right in pairwise(sorted(keys)))
