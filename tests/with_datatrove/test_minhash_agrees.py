"""MinHash finds the near duplicates that datatrove's finds, as often as the curve says.

The hashes differ, so which pairs are found differs too: the numbers of pairs are compared with what
their similarities make expected.
"""

import random
from functools import lru_cache

import numpy as np
import pyarrow.parquet as pq
import pytest
from datatrove.pipeline.dedup.minhash import MinhashDedupSignature
from documents import files

from fineshards.curation.batch import Batch
from fineshards.curation.steps.minhash import MinHash
from fineshards.curation.words.normal_form import simplified_words
from fineshards.shards.tables.marks import components, edges, key_records, mark, positions

SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08)


@lru_cache(maxsize=1)
def documents() -> tuple[list[str], list[str]]:
    """Documents of the sample, each once, and a mutated copy of each, all different in parts."""
    chance = random.Random(7)
    texts: dict[str, str] = {}
    for text in pq.read_table(files()[0], columns=["text"])["text"].to_pylist():
        words = text.split()
        if len(words) >= 100:
            texts.setdefault(" ".join(words[:20]), text)
    originals = list(texts.values())[:600]
    return originals, [
        mutated(text, SHARES[i % len(SHARES)], chance) for i, text in enumerate(originals)
    ]


def mutated(text: str, share: float, chance: random.Random) -> str:
    """A text with a share of its words replaced by words that are nowhere else."""
    words = text.split(" ")
    for number in range(len(words)):
        if chance.random() < share:
            words[number] = "".join(chance.choices("bcdfghjklmnpqrstvwxz", k=10))
    return " ".join(words)


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def similarity(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> float:
    return len(left & right) / len(left | right)


def chance_of(similarity: float) -> float:
    return 1 - (1 - similarity**8) ** 14


def our_bands(texts: list[str]) -> np.ndarray:
    return (
        MinHash(words="spacy", numbers="alike")
        .keys(Batch.of_texts(texts))
        .keys.reshape(len(texts), 14)
    )


@lru_cache(maxsize=1)
def datatrove_bands() -> list[list[tuple[int, ...]]]:
    step = MinhashDedupSignature(output_folder="/dev/null")
    found = [step.get_signature(step.get_shingles(t)) for part in documents() for t in part]
    return [[tuple(band) for band in document] for document in found]


@pytest.mark.parametrize(
    ("low", "high"), [(0.3, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1)]
)
def test_both_find_pairs_as_often_as_the_curve_says(low: float, high: float) -> None:
    from fineshards.curation.words.normal_form import simplify
    from fineshards.curation.words.tokenizers import tokenizer

    originals, copies = documents()
    ours, theirs = our_bands([*originals, *copies]), datatrove_bands()
    split = tokenizer("en").plain
    found = {"ours": 0, "datatrove": 0}
    chances: list[float] = []
    for number, (original, copy) in enumerate(zip(originals, copies, strict=True)):
        alike = similarity(shingles(split(simplify(original))), shingles(split(simplify(copy))))
        if low <= alike < high:
            other = number + len(originals)
            chances.append(chance_of(alike))
            found["ours"] += bool((ours[number] == ours[other]).any())
            pairs = zip(theirs[number], theirs[other], strict=True)
            found["datatrove"] += any(left == right for left, right in pairs)
    assert len(chances) >= 20
    expected = sum(chances)
    deviation = sum(each * (1 - each) for each in chances) ** 0.5
    for name, pairs_found in found.items():
        assert abs(pairs_found - expected) <= 4 * deviation + 1, name


def clusters(links: list[tuple[int, int]], count: int) -> int:
    """How many of some documents are not the first of their cluster, by a union-find."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    for left, right in links:
        low, high = sorted((root(left), root(right)))
        parent[high] = low
    return sum(root(node) != node for node in range(count))


def test_components_drop_as_many_documents_as_datatrove_within_the_bound() -> None:
    originals, copies = documents()
    texts = [*originals, *copies]
    keys = MinHash(words="spacy", numbers="alike", rule="components").keys(Batch.of_texts(texts))
    records = key_records(keys.keys, positions(0, keys.owners))
    dropped = components(edges(records))
    earlier = mark(records)
    assert set(earlier["position"].tolist()) <= set(dropped["position"].tolist())

    first: dict[tuple[int, tuple[int, ...]], int] = {}
    links = [
        (first.setdefault((bucket, band), document), document)
        for document, bands in enumerate(datatrove_bands())
        for bucket, band in enumerate(bands)
    ]
    theirs = clusters(links, len(texts))

    # Of other pairs than an original and its copy, few are alike; those found by chance vary by the
    # deviation of both.
    chances = [
        chance_of(similarity(shingles(simplified_words(a)), shingles(simplified_words(b))))
        for a, b in zip(originals, copies, strict=True)
    ]
    deviation = (2 * sum(each * (1 - each) for each in chances)) ** 0.5
    assert abs(len(dropped) - theirs) <= 5 * deviation + 1
    assert theirs > 100
