"""Lines, paragraphs and runs of sentences: their keys, and what is left when they are cut."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_128_intdigest

from fineshards.curation.batch import Batch
from fineshards.curation.step import KeyedSpans
from fineshards.curation.steps.spans import Lines, Paragraphs, Sentences, sentences
from fineshards.curation.words.normal_form import simplified_words

EVERYTHING: dict[str, Any] = {"min_chars": 0, "min_doc_words": 0}
ALL_LEFT: dict[str, Any] = {"min_doc_words": 0, "min_num_sentences": 0}


def key(words: list[str]) -> int:
    return xxh3_128_intdigest(b"".join(xxh3_64_digest(word.encode())[::-1] for word in words))


def found(step: KeyedSpans, texts: list[str]) -> list[tuple[int, int, int]]:
    """The document, span and key of each key."""
    keys = step.keys(Batch.of_texts(texts))
    assert keys.spans is not None
    assert keys.spans.dtype == np.uint32
    numbers = [high << 64 | low for high, low in keys.keys.tolist()]
    return list(zip(keys.owners.tolist(), keys.spans.tolist(), numbers, strict=True))


def test_lines_are_compared_by_their_words() -> None:
    texts = ["All rights\treserved.\n\n…\nNews", "", "all RIGHTS reserved\r\nnews!"]
    rights, news = key(["all", "rights", "reserved"]), key(["news"])
    expected = [(0, 0, rights), (0, 3, news), (2, 0, rights), (2, 1, news)]
    assert found(Lines(**EVERYTHING), texts) == expected


def test_short_spans_have_no_key() -> None:
    texts = ["   1234   \n12345\n\n"]
    assert [span for _, span, _ in found(Lines(min_chars=5), texts)] == [1]
    assert [span for _, span, _ in found(Lines(min_chars=4), texts)] == [0, 1]


def test_paragraphs_are_separated_by_empty_lines() -> None:
    texts = ["One\nline\n\nTwo\n \t\n\n  three\n"]
    expected = [(0, 0, key(["one", "line"])), (0, 1, key(["two"])), (0, 2, key(["three"]))]
    assert found(Paragraphs(**EVERYTHING), texts) == expected


def test_what_is_cut_is_shown_span_by_span() -> None:
    lines = Lines(**EVERYTHING).removed("a\n b \nc\na", [1, 3])
    paragraphs = Paragraphs(**EVERYTHING).removed("a\nb\n\n c\n \nd", [0, 2])
    sentences = Sentences(**ALL_LEFT, n_sentences=2).removed("One. Two! Three? Four. 5.", [0, 3])
    assert lines == ["b", "a"]
    assert paragraphs == ["a\nb", "d"]
    assert sentences == ["One.", "Two!", "Four.", "5."]


def test_every_run_of_sentences_has_a_key() -> None:
    step = Sentences(**ALL_LEFT)
    texts = ["Ann bob. Cat! Dog? Elk", "Ann bob. Cat!", ""]
    expected = [(0, 0, key(["ann", "bob", "cat", "dog"])), (0, 1, key(["cat", "dog", "elk"]))]
    assert found(step, texts) == expected
    lines = Sentences(split_sentences=False, n_sentences=2)
    assert found(lines, ["a. b\nc\r\nd"]) == [(0, 0, key(["a", "b", "c"])), (0, 1, key(["c", "d"]))]


def test_a_run_without_words_has_no_key() -> None:
    assert found(Sentences(split_sentences=False, n_sentences=1), ["…\na\n\n"]) == [
        (0, 1, key(["a"]))
    ]


def test_sentences_beyond_65_535_have_numbers_of_their_own() -> None:
    text = "a\n" * 70_000
    spans = [span for _, span, _ in found(Sentences(split_sentences=False), [text])]
    assert spans == list(range(69_998))


PIECES = st.lists(st.sampled_from(["", "a", "b c", "…", " ", "D."]), min_size=1, max_size=8)


@given(PIECES, st.sets(st.integers(0, 7)))
def test_what_is_left_of_lines_is_the_other_lines(lines: list[str], cut: set[int]) -> None:
    spans = sorted(number for number in cut if number < len(lines))
    left = "\n".join(line for number, line in enumerate(lines) if number not in cut)
    expected = (left, "") if left.strip() else (None, "nothing_left")
    assert Lines(**EVERYTHING).cut("\n".join(lines), spans) == expected


@given(PIECES, st.sets(st.integers(0, 7)))
def test_what_is_left_of_paragraphs_keeps_the_separators_before_it(
    pieces: list[str], cut: set[int]
) -> None:
    paragraphs = [piece.strip() or "x" for piece in pieces]
    separators = ["", *("\n\n" + " \n" * (number % 3) for number in range(1, len(paragraphs)))]
    text = "".join(s + p for s, p in zip(separators, paragraphs, strict=True))
    spans = sorted(number for number in cut if number < len(paragraphs))
    kept = [number for number in range(len(paragraphs)) if number not in cut]
    left = "".join(
        (separators[number] if i else "") + paragraphs[number] for i, number in enumerate(kept)
    )
    expected = (left, "") if left else (None, "nothing_left")
    assert Paragraphs(**EVERYTHING).cut(text, spans) == expected


@pytest.mark.parametrize("step", [Lines(min_doc_words=3), Paragraphs(min_doc_words=3)])
def test_a_document_with_few_words_left_is_dropped(step: Lines | Paragraphs) -> None:
    left = "one two\n\n\nfour" if isinstance(step, Lines) else "one two\n\nthree"
    assert step.cut("one two\n\nthree\n\nfour", [2]) == (left, "")
    last = 4 if isinstance(step, Lines) else 2
    assert step.cut("one two\n\nthree\n\nfour", [0, last]) == (None, "too_few_words")


@given(st.text("ab .!?…\n\t"))
def test_sentences_together_are_the_text(text: str) -> None:
    parts = sentences(text)
    assert "".join(parts) == text
    assert all(part.strip() for part in parts) or len(parts) == 1


def test_a_word_that_spacy_stumbles_over_is_a_word() -> None:
    text = "The flag IS_ALPHA is set. So is IS_ALPHA! And this?"
    assert sentences(text) == ["The flag IS_ALPHA is set.", " So is IS_ALPHA!", " And this?"]
    step = Sentences(n_sentences=1, min_doc_words=10, min_num_sentences=2)
    assert step.cut(text, [2]) == ("The flag IS_ALPHA is set. So is IS_ALPHA!", "")


def test_a_repeated_passage_is_cut_whole() -> None:
    step = Sentences(**ALL_LEFT)
    text = "New one. Same red. Same blue! Same green? Same white. New two."
    assert step.cut(text, [1, 2]) == ("New one. New two.", "")
    assert step.cut(text, [0]) == ("Same green? Same white. New two.", "")
    assert step.cut(text, [3]) == ("New one. Same red. Same blue!", "")
    assert step.cut(text, [0, 3]) == (None, "nothing_left")
    assert step.cut(text, []) == (text, "")


def test_too_little_left_drops_a_document_with_the_reason() -> None:
    text = "One two three. Same red. Same blue! Same green? Four."
    words = Sentences(min_doc_words=7, min_num_sentences=0)
    assert words.cut(text, [1]) == (None, "too_few_words")
    assert Sentences(min_doc_words=6, min_num_sentences=2).cut(text, [1])[1] == ""
    assert Sentences(min_doc_words=6, min_num_sentences=3).cut(text, [1]) == (
        None,
        "too_few_sentences",
    )


def test_lines_are_cut_with_their_ends() -> None:
    step = Sentences(split_sentences=False, n_sentences=2, **ALL_LEFT)
    assert step.cut("a\r\nb\nc\nd", [1]) == ("a\r\nd", "")


@given(st.lists(st.text("ab.\n "), max_size=6), st.data())
def test_the_other_documents_of_a_batch_do_not_matter(
    texts: list[str], data: st.DataObject
) -> None:
    for step in (Lines(min_chars=2), Paragraphs(min_chars=2), Sentences(n_sentences=2)):
        together = found(step, texts)
        cut = data.draw(st.integers(0, len(texts)))
        second = [(owner + cut, span, key) for owner, span, key in found(step, texts[cut:])]
        assert together == found(step, texts[:cut]) + second


def test_golden_keys() -> None:
    """When this fails, the step's VERSION must change."""
    assert Lines.VERSION == Paragraphs.VERSION == Sentences.VERSION == 1
    words = simplified_words("The same line, 3 times.")
    (first,) = found(Lines(), ["The same line, 3 times."])
    assert words == ["the", "same", "line", "0", "times"]
    assert hex(first[2]) == "0x9b98c1c22e4ba17e4c7678f62745447c"
