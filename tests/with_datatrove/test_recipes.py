"""Each step of the package's recipes decides and writes as datatrove's block does, in a row.

A step sees the texts that the steps before it left. Steps that compare documents, scores of models
and `dclm_lines`, which datatrove does not have, are left out.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter, SymbolLinesFormatter
from documents import ROOT, SHARED, parts
from mutations import mutated
from test_filters import MODEL
from test_languages import NAMES
from test_quality import Pair

from fineshards.curation.batch import Batch
from fineshards.curation.per_language import PerLanguage
from fineshards.curation.recipe import make_step, parameters_of, parse_recipe
from fineshards.curation.step import Judge
from fineshards.pipeline.recipe_flags import shipped_recipes

BLOCKS: dict[str, Any] = {
    "c4_quality": C4QualityFilter,
    "fineweb_quality": FineWebQualityFilter,
    "ftfy": FTFYFormatter,
    "gopher_quality": GopherQualityFilter,
    "gopher_repetition": GopherRepetitionFilter,
    "language": LanguageFilter,
    "pii": PIIFormatter,
    "symbol_lines": SymbolLinesFormatter,
}
# What datatrove calls these, and what both take for replacements.
THEIR_NAMES = {"de": "deu_Latn", "zh": NAMES["zh"], "ja": NAMES["ja"], "en": "eng_Latn"}
REPLACED = {"email_replacement": "<MAIL>", "ip_replacement": "<IP>"}


class Formatter:
    """A formatter of datatrove as a filter that keeps everything."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def filter(self, document: Document) -> bool:
        document.text = self._formatter.format(document.text)
        return True


def pair_of(use: str, step: Judge, patch: pytest.MonkeyPatch) -> Pair:
    """A step, and datatrove's block with the same parameters."""
    parameters = parameters_of(step)
    if use == "pii":
        parameters |= REPLACED
    given = dict(parameters)
    if given.pop("words", "") == "space":
        for module in (gopher_quality_filter, gopher_repetition_filter):
            patch.setattr(module, "split_into_words", lambda text, _: text.split())
    given |= {"language": THEIR_NAMES[given["language"]]} if "language" in given else {}
    given.pop("model", None)
    # None is datatrove's default of lists, and does not switch this rule off.
    given |= {"short_line_thr": 999} if given.get("short_line_thr", 0) is None else {}
    block = BLOCKS[use](**given)
    if use == "language":
        block.model._model = fasttext.load_model(MODEL)
    made = make_step(use, parameters, use).step
    assert isinstance(made, Judge)
    return Pair(use, made, block if hasattr(block, "filter") else Formatter(block))


def pages(batch: Batch) -> Iterator[Batch]:
    """Few documents at a time: datatrove remembers the words of five texts."""
    for start in range(0, len(batch), 5):
        yield Batch.of_texts(batch.strings[start : start + 5])


def must_agree(pair: Pair, batch: Batch) -> tuple[Batch, int]:
    """The documents that the step keeps, with their texts from there on, and how many it drops."""
    texts: list[str] = []
    for few in pages(batch):
        if pair.name == "language":
            ours = pair.step.apply(few).reasons
            theirs = [pair.filter.filter(Document(text=text, id="")) for text in few.strings]
            assert [reason is None for reason in ours] == list(map(bool, theirs))
        else:
            pair.must_agree(few)
        outcome = pair.step.apply(few)
        reasons = outcome.reasons or [None] * len(few)
        left = zip(outcome.texts or few.strings, reasons, strict=True)
        texts += [text for text, reason in left if reason is None]
    return Batch.of_texts(texts), len(batch) - len(texts)


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_the_steps_of_a_recipe_decide_as_those_of_datatrove(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [part.batch() for part in parts() if part.start == 0]
    texts = [text for batch in batches for text in batch.strings[:60]]
    texts += [mutated(text, seed) for seed, text in enumerate(texts)]
    batch, compared = Batch.of_texts(texts), set()
    content = shipped_recipes()[name].replace('"REPLACE-ME"', '"builtins:len"')
    for use, step in ((each.use, each.step) for each in parse_recipe(content, name).steps):
        if use in BLOCKS:
            assert isinstance(step, Judge)
            batch, dropped = must_agree(pair_of(use, step, monkeypatch), batch)
            compared |= {use} if dropped else set()
    assert len(batch)
    assert compared or name == "fineweb-edu"


LANGUAGES = {"deu_Latn": "de", "cmn_Hani": "zh", "jpn_Jpan": "ja"}


def config(number: int, stop_words: list[str]) -> dict[str, Any]:
    """Thresholds as a file of FineWeb-2 has them, other ones for each language."""
    return {
        "dup_line_frac": 0.2 + number / 20,
        "dup_n_grams": [[5, 0.15 + number / 20], [8, 0.1]],
        "language_score": 0.5,
        "line_punct_thr": 0.05 + number / 20,
        "max_avg_word_length": 12 - 3 * number,
        "max_non_alpha_words_ratio": 0.7,
        "min_avg_word_length": 1,
        "new_line_ratio": 0.3,
        "stopwords": stop_words,
        "top_n_grams": [[2, 0.2], [3, 0.2 - number / 20]],
    }


@pytest.mark.skipif(SHARED is None, reason="documents in three languages are not there")
def test_fineweb2_decides_as_datatrove_in_three_languages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_words = ["der", "die", "und", "in"], ["的", "是", "在", "了"], ["の", "は", "に", "を"]
    for number, label in enumerate(LANGUAGES):
        values = config(number, stop_words[number])
        (tmp_path / f"{label}.yml").write_text(yaml.safe_dump(values))
    command = [sys.executable, ROOT / "examples/fineweb2_recipe.py", tmp_path]
    command += [f"{label}={language}" for label, language in LANGUAGES.items()]
    recipe = parse_recipe(subprocess.check_output(command, text=True), "it")
    assert SHARED is not None
    table = pq.read_table(SHARED / "corpus/multi-00000.parquet", columns=["text", "language"])
    for label, language in LANGUAGES.items():
        chosen = table.filter(pc.field("language") == language)["text"].to_pylist()[:150]
        batch, decided = Batch.of_texts(chosen), {}
        for each in recipe.steps:
            if each.use not in BLOCKS:
                continue
            step = each.step
            if isinstance(step, PerLanguage):
                # The tables choose by the column, whatever is beside a document.
                named = pa.array([label] * len(batch))
                whole = Batch(0, np.arange(len(batch)), batch.texts, {"language": named})
                reasons = step.apply(whole).reasons
                step = step.steps[label]
                assert reasons == step.apply(batch).reasons
            batch, decided[each.use] = must_agree(pair_of(each.use, step, monkeypatch), batch)
        assert len(batch)
        assert sum(map(bool, decided.values())) > 1, decided
