"""Steps that decide as datatrove does: as a block of its pipeline, decontamination, words."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import regex
from datatrove.data import Document
from datatrove.pipeline import filters, formatters
from datatrove.pipeline.decont.n_grams import (
    NGramsDecontConfig,
    NGramsDecontFilter,
    NGramsDecontIndexer,
)
from datatrove.pipeline.filters.base_filter import get_filter_result
from datatrove.utils.hashing import HashConfig, create_hash_func
from datatrove.utils.text import PUNCTUATION, simplify_text
from datatrove.utils.word_tokenizers import load_word_tokenizer
from documents import Part, parts
from hypothesis import given
from hypothesis import strategies as st
from mutated import mutated
from xxhash import xxh3_64_digest

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import load_steps, make_step
from fineshards.curation.steps.datatrove_block import DatatroveBlock
from fineshards.curation.steps.decontaminate import Decontaminate
from fineshards.curation.words import normal_form
from fineshards.curation.words.normal_form import simplify, word_hashes
from fineshards.errors import InputError, UsageError

SAMPLE = next(parts())


@pytest.mark.parametrize(
    ("block", "parameters"),
    [
        ("GopherQualityFilter", {"min_doc_words": 20}),
        ("C4QualityFilter", {"filter_no_terminal_punct": False}),
        ("FineWebQualityFilter", {}),
        ("RegexFilter", {"regex_exp": "[0-9]{4}"}),
    ],
)
def test_filters(block: str, parameters: dict[str, Any]) -> None:
    few = SAMPLE.batch(["url"])
    few = few.keep(few.rows % 5 == 0)
    named = make_step(f"datatrove:{block}", {"columns": ["url"], **parameters}, "recipe")
    [step] = [each.step for each in load_steps([named.record()])]
    assert step.columns == ("url",)
    outcome = step.apply(few)  # type: ignore[attr-defined]
    theirs = getattr(filters, block)(**parameters)
    for text, reason, left in zip(few.strings, outcome.reasons, outcome.texts, strict=True):
        document = Document(text=text, id="")
        keep, why = get_filter_result(theirs.filter(document))
        assert reason == (None if keep else why or block)
        assert left == document.text
    assert len({*outcome.reasons}) > 1
    assert {"datatrove", "spacy", "unicode"} <= step.pins().keys()


def test_formatters() -> None:
    texts = SAMPLE.batch().strings
    outcome = DatatroveBlock("SymbolLinesFormatter").apply(Batch.of_texts(texts))
    assert outcome.texts == list(map(formatters.SymbolLinesFormatter().format, texts))
    assert outcome.reasons == [None] * len(texts)


@pytest.mark.parametrize(
    ("block", "parameters", "said"),
    [
        ("NoSuchFilter", {}, "is not a filter or formatter of documents in datatrove 0.10"),
        ("MinhashDedupSignature", {}, "Those that can be are C4ParagraphFilter, C4QualityFilter"),
        ("BaseFilter", {}, "is not a filter or formatter"),
        ("RegexFilter", {}, "cannot be made: RegexFilter.__init__() missing"),
        (
            "RegexFilter",
            {"regex_exp": "a", "exclusion_writer": 1},
            "exclusion_writer cannot be set",
        ),
    ],
)
def test_what_cannot_be_made_is_said(block: str, parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        DatatroveBlock(block, parameters=parameters)


def test_a_block_that_fails_is_named_with_the_row() -> None:
    step = DatatroveBlock("GopherQualityFilter", parameters={"min_doc_words": None})
    with pytest.raises(InputError, match="row 1: datatrove:GopherQualityFilter failed with Zero"):
        step.apply(Batch.of_texts(["fine enough", ""]))


class Spaces:
    """datatrove's tokenizers by language split other words; this one splits at spaces."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


@pytest.mark.parametrize(
    "options",
    [{}, {"find_query_ngrams": True}, {"find_overlap_ngrams": False}],
    ids=["default", "queries", "labels"],
)
def test_decontamination(part: Part, options: dict[str, Any], tmp_path: Path) -> None:
    texts = part.batch().strings
    # Every fifteenth document is an evaluation: a question and an answer.
    halves = [(text[:200], text[200:400]) for text in texts[::15]]
    path = tmp_path / "task.jsonl"
    lines = (json.dumps({"query": query, "label": label}) for query, label in halves)
    path.write_text("\n".join(lines))
    config = NGramsDecontConfig(**options)
    # Its constructor imports lighteval.
    indexer = object.__new__(NGramsDecontIndexer)
    indexer.config, indexer.tokenizer = config, Spaces()
    indexer.hash_func = create_hash_func(HashConfig())
    theirs = NGramsDecontFilter(str(tmp_path), config)
    theirs.tokenizer = Spaces()
    theirs._index_hashes = {
        hash_: "task" for query, label in halves for hash_ in indexer.compute_hashes(label, query)
    }
    compared = [*texts, *mutated(texts[::15], 100, str(part)), *(a + b for a, b in halves)]
    documents = [Document(text=text, id="") for text in compared]
    expected = [theirs.filter(document) is not True for document in documents]
    step = Decontaminate((str(path),), 12, label_column="label", query_column="query", **options)
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
