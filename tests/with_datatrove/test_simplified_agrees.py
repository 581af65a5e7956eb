"""Simplified text and its words against datatrove's."""

from __future__ import annotations

import sys
import unicodedata

import regex
from datatrove.utils.text import PUNCTUATION, simplify_text
from datatrove.utils.word_tokenizers import load_word_tokenizer
from documents import Part
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import simplify, word_hashes

SPACY = load_word_tokenizer("en")


def hashed(words: list[str]) -> bytes:
    return b"".join(xxh3_64_digest(word.encode())[::-1] for word in words)


def test_the_same_characters_become_spaces() -> None:
    assert normal_form._PUNCTUATION == PUNCTUATION


def test_every_character_is_simplified_alike() -> None:
    """But for digits of a Unicode that Python does not know yet.

    Letters without case are all alike: some of these.
    """
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    known = [c for c in characters if unicodedata.category(c) not in ("Cn", "Co", "Lo")]
    known += [c for c in characters if unicodedata.category(c) == "Lo"][::20]
    newer = [c for c in characters if unicodedata.category(c) == "Cn" and regex.match(r"\p{Nd}", c)]
    assert len(newer) < 200
    for start in range(0, len(known), 1000):
        text = "".join(f"A{c}σ{c}1{c}2 {c}\u0301 " for c in known[start : start + 1000])
        assert simplify(text) == simplify_text(text), start


@given(
    st.text(
        st.one_of(
            st.sampled_from("aÉΣ09٣.,٫ \n'…\u0301\u0323—_"),
            st.characters(max_codepoint=0x10000, exclude_categories=["Cs", "Cn"]),
        )
    )
)
def test_made_up_text_is_simplified_alike(text: str) -> None:
    assert simplify(text) == simplify_text(text)


def test_real_text_is_simplified_alike(part: Part) -> None:
    texts = part.batch().strings
    expected = [simplify_text(text) for text in texts]
    assert list(map(simplify, texts)) == expected
    assert word_hashes(texts) == [hashed(text.split()) for text in expected]


def test_the_words_of_spacy_are_alike(part: Part) -> None:
    texts = part.batch().strings[::10]
    expected = [SPACY.word_tokenize(simplify_text(text)) for text in texts]
    assert word_hashes(texts, "spacy") == [hashed(words) for words in expected]
