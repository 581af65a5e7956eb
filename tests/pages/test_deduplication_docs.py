"""The tables of docs/curation.md are computed here, and the page must have them."""

from __future__ import annotations

from fractions import Fraction

from support.checkout import ROOT

from fineshards.shards.tables import marks
from fineshards.shards.tables.components import EDGE, MOST_EDGES

PAGE = (ROOT / "docs/curation.md").read_text()


def percent(similarity: Fraction, buckets: int, hashes: int) -> str:
    chance = 1 - (1 - similarity**hashes) ** buckets
    return f"{float(100 * chance):.4g} %" if chance < Fraction(999, 1000) else "> 99.9 %"


def s_curve() -> str:
    shapes = [(14, 8), (26, 11), (20, 13), (450, 20)]
    rows = []
    for hundredths in (50, 60, 70, 80, 90):
        similarity = Fraction(hundredths, 100)
        found = [percent(similarity, *shape) for shape in shapes]
        rows.append(f"| {hundredths / 100:.2f} | {' | '.join(found)} |")
    return "\n".join(rows)


def wrong_joins(documents: int, keys: int, bits: int) -> str:
    """The expected number of pairs of documents with an equal key by chance."""
    expected = float(keys * Fraction(documents * (documents - 1), 2) / 2**bits)
    if 10 <= expected < 10**6:
        return f"{expected:,.0f}"
    return f"{expected:.2g}"


def joins() -> str:
    kinds = [(14, 64), (1, 128)]
    sizes = [10**8, 10**9, 23 * 10**9]
    rows = [(size, [wrong_joins(size, *kind) for kind in kinds]) for size in sizes]
    return "\n".join(f"| {size:,} | {' | '.join(found)} |" for size, found in rows)


def test_the_page_has_the_curve() -> None:
    assert s_curve() in PAGE


def test_the_page_has_the_wrong_joins() -> None:
    assert joins() in PAGE


def test_the_page_has_the_limits() -> None:
    assert f"{marks.FILES:,} files of {marks.ROWS:,} rows" in PAGE
    assert f"more than {MOST_EDGES:,}" in PAGE
    # An edge, and what the search for components needs beside it.
    assert f"{EDGE.itemsize + 91} bytes each" in PAGE


def test_changed_words_leave_the_similarity_that_the_page_says() -> None:
    """A changed word is in 5 of the shingles, and a copy has as many new ones."""
    for every, said in ((100, "0.91"), (50, "0.82"), (20, "0.63")):
        same = (1 - 1 / every) ** 5
        assert f"{same / (2 - same):.2f}" == said
        assert said in PAGE
