"""Passages: found by winnowed windows, compared with all windows, and what is left of a text."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_128_intdigest

from fineshards.curation.batch import Batch
from fineshards.curation.steps.passages import Passages

documents = st.lists(st.text("abc", max_size=60), max_size=4)


def marks(step: Passages, texts: Sequence[str]) -> list[list[int]]:
    """For each text, the spans with a key that an earlier span has, of it or of another text."""
    keys = step.keys(Batch.of_texts(texts))
    assert keys.spans is not None
    assert keys.spans.dtype == np.uint32
    seen = set[tuple[int, ...]]()
    marked: list[list[int]] = [[] for _ in texts]
    for owner, span, key in zip(
        keys.owners.tolist(), keys.spans.tolist(), map(tuple, keys.keys.tolist()), strict=True
    ):
        if key in seen:
            marked[owner].append(span)
        seen.add(key)
    return marked


def cut(step: Passages, texts: Sequence[str]) -> list[str | None]:
    spans = marks(step, texts)
    return [step.cut(text, of)[0] if of else text for text, of in zip(texts, spans, strict=True)]


def windows(texts: Sequence[str], size: int) -> list[tuple[int, int, str]]:
    return [
        (document, place, text[place : place + size])
        for document, text in enumerate(texts)
        for place in range(len(text) - size + 1)
    ]


@given(documents, st.integers(3, 12))
@example(["abcabcabcabc" * 3, "cabcabcab"], 7)
@example(["a" * 40, "b" + "a" * 40], 9)
@example(["a" * 12, "a" * 12, "ba" * 20], 8)
def test_every_passage_is_found_and_no_other_is_cut(texts: list[str], least: int) -> None:
    step = Passages(least, "characters", 0)
    marked = marks(step, texts)
    size = step._window
    assert 2 * least <= 3 * size
    # What is marked occurred before.
    first: dict[str, tuple[int, int]] = {}
    for document, place, window in windows(texts, size):
        first.setdefault(window, (document, place))
    for document, spans in enumerate(marked):
        assert spans == sorted(spans)
        for span in spans:
            assert first[texts[document][span : span + size]] < (document, span)
    # What occurred before, as a whole and without touching itself, has a mark.
    first.clear()
    for document, place, passage in windows(texts, least):
        before, begin = first.setdefault(passage, (document, place))
        if before < document or begin + least <= place:
            assert any(place <= span <= place + least - size for span in marked[document])
    for text, spans in zip(texts, marked, strict=True):
        gone = {place for span in spans for place in range(span, span + size)}
        left = "".join(letter for place, letter in enumerate(text) if place not in gone)
        assert not spans or step.cut(text, spans) == (
            (left, "") if left else (None, "nothing_left")
        )


def unlike(draw: random.Random, count: int) -> list[str]:
    return [f"w{draw.getrandbits(60)}" for _ in range(count)]


@pytest.mark.parametrize("size", [33, 34, 40, 49, 50, 51, 66, 120, 400])
@pytest.mark.parametrize("place", [0, 7, 200])
def test_a_planted_passage_is_cut_whatever_is_around_it(size: int, place: int) -> None:
    draw = random.Random(size + place)
    passage, one, two = unlike(draw, size), unlike(draw, 300), unlike(draw, 200)
    earlier = " ".join([*one[:150], *passage, *one[150:]])
    later = "\n".join([*two[:place], *(word.upper() for word in passage), *two[place:]])
    whole, left = cut(Passages(), [earlier, later])
    assert whole == earlier
    assert left is not None
    words = left.split()
    rest = words[place : len(words) - 200 + place]
    assert words[:place] + words[place + len(rest) :] == two
    if size < 34:
        assert len(rest) == size
    if size >= 50:
        assert len(rest) <= 32
        ends = [word.upper() for word in passage]
        assert any(rest == ends[:n] + ends[size - len(rest) + n :] for n in range(17))


def test_text_without_spaces_and_code_have_passages() -> None:
    draw = random.Random(1)
    one, two, copied = (
        "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(100)) for _ in range(3)
    )
    step = Passages(words="characters")
    assert cut(Passages(), [one + copied, two + copied]) == [one + copied, two + copied]
    (_, left) = cut(step, [one + copied, two[:50] + "\n" + copied + two[50:]])
    assert left is not None
    assert left.startswith(two[:50] + "\n")
    assert left.endswith(two[50:])
    assert len(left) <= 101 + 32
    body = "".join(f"    total_{n} = total_{n - 1} * {n}\n" for n in range(1, 30))
    code = f"import os\n\n\ndef first():\n{body}    return total_29\n"
    again = f"def second(x):\n    x += 1\n{body}    print(total_29, x)\n"
    (whole, left) = cut(Passages(min_doc_words=0), [code, again])
    assert whole == code
    assert left is not None
    assert left.startswith("def second(x):\n    x += 1\n    ")
    assert left.endswith("print(total_29, x)\n")
    assert len(left.split()) < 7 + 2 + 32


def test_the_first_occurrence_in_a_document_stays() -> None:
    passage = " ".join(unlike(random.Random(2), 60))
    step = Passages(min_doc_words=0)
    (left,) = cut(step, [f"{passage} between {passage} end"])
    assert left is not None
    assert left.startswith(f"{passage} between ")
    assert len(left.split()) <= 62 + 32
    (left,) = cut(step, ["ha " * 1000])
    assert left == " ".join(["ha"] * 33)


@pytest.mark.parametrize("period", range(1, 17))
def test_what_repeats_without_a_break_has_few_keys(period: int) -> None:
    texts = [" ".join(f"w{n % period}" for n in range(size)) for size in (2000, 50, 2010)]
    keys = Passages().keys(Batch.of_texts(texts))
    assert set(keys.owners.tolist()) == {0, 1, 2}
    assert 3900 / 17 < len(keys.keys) < 4000 / (18 - period) + 10
    assert cut(Passages(), texts)[1:] == [None, None]


def test_within_a_document_only_its_own_passages_are_compared() -> None:
    draw = random.Random(3)
    once, twice = " ".join(unlike(draw, 80)), " ".join(unlike(draw, 80))
    texts = [f"{once} {twice} {twice}", f"{once} {twice}"]
    step = Passages(within="document", min_doc_words=0)
    keys = step.keys(Batch.of_texts(texts))
    # Keys without a partner are not sent.
    assert len(keys.keys) == 2 * len(np.unique(keys.keys, axis=0))
    assert set(keys.owners.tolist()) == {0}
    one, two = cut(step, texts)
    assert (one or "").startswith(f"{once} {twice}")
    assert len((one or "").split()) <= 160 + 32
    assert two == texts[1]
    assert cut(Passages(), texts)[1] is None


def test_documents_of_two_groups_are_not_compared() -> None:
    text = " ".join(unlike(random.Random(4), 80))
    step = Passages(within="file")
    one, two = (Batch(file, np.arange(1), Batch.of_texts([text]).texts, {}) for file in (0, 1))
    assert not np.isin(step.keys(one).keys, step.keys(two).keys).any()
    assert (step.keys(one).keys == step.keys(one).keys).all()


def test_keys_are_those_of_the_words_of_windows() -> None:
    keys = Passages(min_words=3).keys(Batch.of_texts(["too short", "The NEWS of\tpH", ""]))
    hashes = [xxh3_64_digest(word.encode())[::-1] for word in ("the", "news", "of", "pH")]
    expected = [xxh3_128_intdigest(b"".join(hashes[place : place + 3])) for place in (0, 1)]
    assert [high << 64 | low for high, low in keys.keys.tolist()] == expected
    assert keys.owners.tolist() == [1, 1]
    assert keys.spans is not None
    assert keys.spans.tolist() == [0, 1]
    assert Passages().keys(Batch.of_texts(["a b"])).keys.shape == (0, 2)


@pytest.mark.parametrize(
    ("parameters", "spans", "expected"),
    [
        ({}, [0], ("d e  f", "")),
        ({}, [1], ("a\n\ne  f", "")),
        ({}, [3], ("a\n\nb c", "")),
        ({}, [0, 3], (None, "nothing_left")),
        ({"min_doc_words": 4}, [0], (None, "too_few_words")),
    ],
)
def test_the_rest_keeps_its_white_space(
    parameters: dict[str, Any], spans: list[int], expected: tuple[str | None, str]
) -> None:
    step = Passages(min_words=3, **{"min_doc_words": 0} | parameters)
    assert step.cut("a\n\nb c d e  f", spans) == expected


def test_what_is_cut_is_shown_alone() -> None:
    step = Passages(min_words=3)
    assert step.removed("a b c d. E f  g h i j k", [1, 5, 6]) == ["b c d.", "f  g h i"]


def test_keys_of_ten_megabytes_are_few() -> None:
    draw = np.random.default_rng(5)
    text = " ".join(map(str, draw.integers(10**4, 10**8, 1_150_000).tolist()))
    assert len(text) > 10_000_000
    keys = Passages().keys(Batch.of_texts([text]))
    assert 0.10 < len(keys.keys) / 1_150_000 < 0.12
    (left,) = cut(Passages(), [text[:5_000_000] + " " + text[:5_000_000]])
    assert left is not None
    assert 5_000_000 <= len(left) < 5_000_400
