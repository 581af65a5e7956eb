"""What builds drop as nearly the same: planted pairs of every similarity, and pages of one kind.

The pages are of the kinds that word shingles and shared keys alone have confused in public data:
one article by several extractors, an article that quotes another, a revision, and pages of a site
that share its menus.
"""

import json
import random
from pathlib import Path

import pytest
from support.curated import decisions_in, write_recipe

import fineshards
from fineshards.curation.batch import Batch
from fineshards.curation.recipe import make_step

pytestmark = pytest.mark.curation

PAIRS = 200
LENGTH = 504
CHANGES = {0: 1.0, 11: 0.8, 14: 0.75, 20: 0.66, 33: 0.5, 10: 0.82, 5: 0.9}


def shingles(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}


def similarity(one: str, other: str) -> float:
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b)


def dropped(folder: Path, texts: list[str], **parameters: object) -> dict[int, int]:
    """The rows that a build drops as near duplicates, with the rows of their witnesses."""
    folder.mkdir(exist_ok=True)
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = write_recipe(folder / "recipe.toml", [("minhash", parameters)])
    fineshards.build(input=source, output=folder / "out", recipe=recipe)
    (decisions,) = decisions_in(folder / "out", 1)
    return {row: witness for row, *_, witness, _ in decisions if witness is not None}


def article(draw: random.Random, words: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(draw.choices(letters, k=draw.randint(4, 9))) for _ in range(words))


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """Texts of random words, each with a copy of which some words are others, far apart."""
    draw = random.Random(11)
    made = []
    for changes in CHANGES:
        for _ in range(PAIRS):
            one = article(draw, LENGTH)
            words = one.split(" ")
            for at in draw.sample(range(5, LENGTH - 5, 6), changes):
                words[at] = "another"
            made.append((one, " ".join(words)))
    return made


def test_planted_pairs_are_dropped_exactly_where_they_share_a_key_and_are_alike(
    tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    step = make_step("minhash", {}, "the test").step
    keys = step.keys(Batch.of_texts([text for pair in pairs for text in pair])).keys
    keys = keys.reshape(len(pairs), 2, -1)
    share = (keys[:, 0] == keys[:, 1]).any(axis=1).tolist()
    expected = {
        2 * number + 1: 2 * number
        for number, pair in enumerate(pairs)
        if share[number] and similarity(*pair) >= 0.8
    }
    assert dropped(tmp_path, [text for pair in pairs for text in pair]) == expected
    found = {
        similarity: sum(2 * at + 1 in expected for at in range(first, first + PAIRS))
        for first, similarity in zip(range(0, len(pairs), PAIRS), CHANGES.values(), strict=True)
    }
    # Nothing below the threshold, and above it nearly all that the keys can find.
    assert found[0.5] == found[0.66] == found[0.75] == 0
    assert found[1.0] == PAIRS
    assert found[0.82] > 0.88 * PAIRS
    assert found[0.9] > 0.98 * PAIRS


def test_without_a_comparison_pairs_that_differ_are_dropped(
    tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    texts = [text for pair in pairs for text in pair]
    found = dropped(tmp_path, texts, verify="none")
    wrong = [row for row in found if similarity(texts[row], texts[found[row]]) < 0.75]
    assert len(wrong) > 50


def test_texts_that_differ_only_in_what_the_simplified_text_leaves_out_are_kept(
    tmp_path: Path,
) -> None:
    """Each kind's words are the same word when simplified. A second copy of each text is dropped,
    although keys that leave numbers out would be those of all texts of the kind."""
    draw = random.Random(4)
    kinds = [
        [str(number) for number in range(100)],
        ["٣", "٥", "९", "7"],
        ["12.5%", "-12,5", "$12", "+3"],
        ["a[i]", "A(I)", "a.i", "a->i"],
        ["xYz9", "xyZ9", "xYZ9", "XYz9"],
        ["ma", "má", "mà", "mả", "mã", "mạ"],
        ["कु", "के", "कै", "क"],
    ]
    texts = [" ".join(draw.choices(kind, k=40)) for kind in kinds for _ in range(20)]
    copies = {len(texts) + number: number for number in range(len(texts))}
    for verify in ("jaccard", "containment", "none"):
        assert dropped(tmp_path / verify, [*texts, *texts], verify=verify) == copies
    alike = dropped(tmp_path / "alike", texts, numbers="alike")
    assert len(alike) >= len(texts) - 15


@pytest.mark.parametrize("verify", ["jaccard", "containment"])
def test_pages_of_one_kind_are_kept_and_one_article_by_three_extractors_is_not(
    tmp_path: Path, verify: str
) -> None:
    draw = random.Random(9)
    menu = "Home | News | Sport | Culture | Sign in to read more of our stories today"
    first, second, third = (article(draw, 600) for _ in range(3))
    parts = first.split(" ")
    by_extractors = [
        first,
        f"{menu}\n\n{first.upper()}\n\n© 2020 all rights reserved",
        "\n".join(" ".join(parts[at : at + 80]) for at in range(0, 600, 80)) + "\n* * *\n",
    ]
    site = [f"{menu}\n\n{article(draw, 40)}\n\n{menu}" for _ in range(20)]
    quotation = f"{second}\n\n“{' '.join(third.split(' ')[:250])}”"
    # Every tenth word is another one.
    words = second.split(" ")
    words[::10] = [f"new{at}" for at in range(60)]
    texts = [*by_extractors, second, third, quotation, " ".join(words), *site]
    found = dropped(tmp_path, texts, verify=verify)
    quoting = {} if verify == "jaccard" else {5: 3}
    assert found == {1: 0, 2: 0} | quoting
