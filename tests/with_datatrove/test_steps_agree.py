"""Decontamination and simplified words as datatrove has them."""

import json
import sys
import unicodedata
from pathlib import Path

import regex
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import (
    NGramsDecontConfig,
    NGramsDecontFilter,
    NGramsDecontIndexer,
)
from datatrove.utils.hashing import HashConfig, create_hash_func
from datatrove.utils.text import PUNCTUATION, simplify_text
from datatrove.utils.word_tokenizers import load_word_tokenizer
from documents import Part
from hypothesis import given
from hypothesis import strategies as st
from mutated import mutated
from xxhash import xxh3_64_digest

from fineshards.curation.batch import Batch
from fineshards.curation.steps.decontaminate import Decontaminate
from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import simplify, word_hashes


class Spaces:
    """datatrove's tokenizers by language split other words; this one splits at spaces."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


def test_decontamination(part: Part, tmp_path: Path) -> None:
    texts = part.batch().strings
    # Every fifteenth document is an evaluation.
    answers = [text[:400] for text in texts[::15]]
    path = tmp_path / "task.jsonl"
    path.write_text("\n".join(json.dumps({"label": label}) for label in answers))
    config = NGramsDecontConfig()
    # Its constructor imports lighteval.
    indexer = object.__new__(NGramsDecontIndexer)
    indexer.config, indexer.tokenizer = config, Spaces()
    indexer.hash_func = create_hash_func(HashConfig())
    theirs = NGramsDecontFilter(str(tmp_path), config)
    theirs.tokenizer = Spaces()
    theirs._index_hashes = {
        hash_: "task" for label in answers for hash_ in indexer.compute_hashes(label, "")
    }
    compared = [*texts, *mutated(texts[::15], 100, str(part)), *answers]
    documents = [Document(text=text, id="") for text in compared]
    expected = [theirs.filter(document) is not True for document in documents]
    step = Decontaminate((str(path),), 12)
    found = step.apply(Batch.of_texts(compared)).reasons
    assert found is not None
    assert [reason is not None for reason in found] == expected
    for text, document, dropped in zip(compared, documents, expected, strict=True):
        if dropped:
            witness = step.witness(text)
            assert witness is not None
            assert witness.ngram == document.metadata["contaminated_ngram"]


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
