"""datatrove's own blocks as steps decide and write as they do by themselves."""

from __future__ import annotations

import re
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.pipeline import filters, formatters
from datatrove.pipeline.filters.base_filter import get_filter_result
from documents import parts

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import load_steps, make_step
from fineshards.curation.steps.datatrove_block import DatatroveBlock
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
