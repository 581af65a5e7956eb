"""Decontamination drops what datatrove's filter drops, with words between spaces in both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import (
    NGramsDecontConfig,
    NGramsDecontFilter,
    NGramsDecontIndexer,
)
from datatrove.utils.hashing import HashConfig, create_hash_func
from documents import Part
from mutated import mutated

from fineshards.curation.batch import Batch
from fineshards.curation.steps.decontaminate import Decontaminate


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
