"""Words of simplified text: from remembered chunks as from the whole text."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import simplified_words, simplify, word_hashes

# White space, letters whose case depends on others, digits, separators, marks, characters that
# decompose into marks, punctuation or several letters, and control characters.
DELICATE = (
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2000\u2028\u2029\u202f\u3000"
    "aZΣσςİıẞKÅ09٣१.,،٫⎖'\"-—»\u0301\u0307\u0323\u0345\u20dd\u200d\u200b\xad"
    "é\u037e\u0387\u1fef가ｱ１中\x00\x7f\x9f^_`´𝟗𑁦🎉"
)
TEXTS = st.text(st.one_of(st.sampled_from(DELICATE), st.characters(exclude_categories=["Cs"])))


def hashed(words: list[str]) -> bytes:
    return b"".join(xxh3_64_intdigest(word.encode()).to_bytes(8, "little") for word in words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" \n ", ""),
        ("Crème Brûlée!", "creme brulee"),
        ("1,234,567.89 and 3.14", "0 0 and 0"),
        ("ΟΔΟΣ ΟΔΟΣ.", "οδος οδος"),
        ("a\u0301 \u0301 b", "a  b"),
        ("don't—stop", "don t stop"),
        ("１２ and ३", "0 and 0"),
        ("a\x00b\x85c", "a b c"),
    ],
)
def test_a_text_is_simplified(text: str, expected: str) -> None:
    assert simplify(text) == expected


@given(st.lists(TEXTS, max_size=4))
def test_words_from_chunks_are_those_of_the_whole_text(texts: list[str]) -> None:
    words = [simplified_words(text) for text in texts]
    assert word_hashes(texts) == [hashed(each) for each in words]
    characters = [[c for word in each for c in word] for each in words]
    assert word_hashes(texts, "characters") == [hashed(each) for each in characters]


# Marks of several classes: nonspacing with a class, without one, of Tibetan vowels that decompose,
# spacing; and letters that decompose into them.
MARKS = "\u0301\u0323\u0344\u0345\u034f\ufe0f\u20dd\u0f71\u0f73\u0f75\u0f81\u0f72\u302e\u302f" + (
    "\u1b44\U00016ff0\U0001d165\U0001d166\U0001d16d\U0001d172\U0001d160aéậ가\u0344"
)


def without_marks(text: str) -> str:
    """The definition."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


@given(st.text(st.one_of(st.sampled_from(MARKS), st.characters(exclude_categories=["Cs"]))))
def test_marks_are_removed_as_from_the_decomposed_text(text: str) -> None:
    assert normal_form._without_marks(text) == without_marks(text)
    assert normal_form._decomposed(text) == unicodedata.normalize("NFD", text)


def test_every_character_among_marks_loses_its_marks() -> None:
    for code in range(sys.maxunicode + 1):
        for text in (chr(code), f"a\U0001d16d{chr(code)}\u302e\u0301"):
            if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs", "Lo"):
                assert normal_form._without_marks(text) == without_marks(text), hex(code)


@pytest.mark.long
@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\u302e\U0001d165", "\u0344\u0323"])
def test_a_long_run_of_marks_is_simplified(marks: str) -> None:
    """In a time that is quadratic in its length, this would not end."""
    spacing = [c for c in marks if unicodedata.category(c) != "Mn"]
    expected = "".join(sorted(spacing * 1_000_000, key=unicodedata.combining))
    assert simplify("a" + marks * 1_000_000) == "a" + expected
    assert len(normal_form._kept("a" + marks * 1_000_000)) >= 1_000_001


def test_every_character_is_simplified_alike_in_a_chunk_and_in_a_text() -> None:
    """Characters that have no case, digit, mark or decomposition are all alike: some of these."""
    assigned = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c)[0] != "C"]
    letters = [c for c in assigned if unicodedata.category(c) == "Lo"]
    characters = {*assigned}.difference(letters).union(letters[::20], map(chr, range(160)))
    texts = [f"Aσ{c}Σ1{c}2 .{c} {c}\u0323\u0301" for c in sorted(characters)]
    for text, found in zip(texts, word_hashes(texts), strict=True):
        assert found == hashed(simplified_words(text)), ascii(text)


def test_no_white_space_is_looked_across() -> None:
    """What the documentation of the module says about white space, for each such character."""
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(spaces) == 29
    for space in spaces:
        assert f"AΣ{space}A".lower() == f"aς{space}a"
        assert unicodedata.combining(space) == 0
        assert not space.isdecimal()


@given(st.lists(TEXTS, max_size=10), st.integers(1, 5))
def test_what_is_remembered_does_not_matter(texts: list[str], most: int) -> None:
    expected = word_hashes(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_form, "_MOST_CHUNKS", most)
        patch.setattr(normal_form, "_LONGEST_CHUNK", 3)
        memo = normal_form._memo("space")
        memo.clear()
        assert word_hashes(texts) == expected
        assert word_hashes(texts[::-1]) == expected[::-1]
        assert len(memo) <= most
        assert all(len(chunk) <= 3 for chunk in memo)
        memo.clear()


def test_spacy_words_are_those_of_the_simplified_text() -> None:
    texts = ["Don't stop: cannot, 3.5km!", "", "…", "is_alpha IS_ALPHA"]
    words = [["don", "t", "stop", "can", "not", "0", "km"], [], [], ["is", "alpha"] * 2]
    assert word_hashes(texts, "spacy") == [hashed(each) for each in words]


def test_the_versions_that_decide_are_pinned() -> None:
    assert normal_form.pins() == {"unicode": unicodedata.unidata_version}
    assert normal_form.pins("spacy").keys() == {"unicode", "spacy"}
