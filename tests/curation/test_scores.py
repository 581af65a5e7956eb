"""The step `score` on single documents: each value is the one that its name promises."""

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.tiny_model import write_model

from fineshards.curation.batch import Batch
from fineshards.curation.steps.fineweb_quality import FineWebQuality
from fineshards.curation.steps.gopher_quality import GopherQuality
from fineshards.curation.steps.language import Language
from fineshards.curation.steps.score import Score
from fineshards.curation.steps.where import Where
from fineshards.errors import UsageError
from fineshards.shards.tables.scores import from_bytes, joined, score_schema, scored, to_bytes

ENGLISH = "This is what we had in mind.\nIt is plain English, and there is nothing else in it."
GERMAN = "Das ist es, was wir im Sinn hatten.\nEs ist einfaches Deutsch, und sonst nichts."


def values(step: Score, *texts: str) -> list[float | str | None]:
    found = step.apply(Batch.of_texts(texts)).scores
    assert found is not None
    assert found.type == step.score_type
    listed: list[float | str | None] = found.to_pylist()
    return listed


def made_up_texts() -> list[str]:
    draw = random.Random(4)
    lines = ["A line that ends.", "no end", "", "  ", "Another line, of more than thirty letters!"]
    lines += ["the same line again and again, and again", "naïve — ﬁ\u2028x", "x"]
    return ["", "\n \n", *("\n".join(draw.choices(lines, k=draw.randint(1, 9))) for _ in range(60))]


def test_lengths_are_those_of_plain_python() -> None:
    texts = made_up_texts()
    plain = {
        "characters": len,
        "bytes": lambda text: len(text.encode()),
        "words": lambda text: len(text.encode().split()),
        "lines": lambda text: text.count("\n") + (text != "" and not text.endswith("\n")),
    }
    for by, length in plain.items():
        assert values(Score("n", by), *texts) == list(map(float, map(length, texts)))


def test_ratios_are_those_that_the_filter_compares() -> None:
    """A document is dropped by a limit that is a little stricter than its ratio, and not by it."""
    off = {"line_punct_thr": None, "short_line_thr": None, "char_duplicates_ratio": None}
    limits = {
        "line_punct_ratio": ("line_punct_thr", 1e-9),
        "short_line_ratio": ("short_line_thr", -1e-9),
        "char_dup_ratio": ("char_duplicates_ratio", -1e-9),
    }
    texts, seen = made_up_texts(), set()
    for by, (limit, stricter) in limits.items():
        for text, ratio in zip(texts, values(Score("r", by), *texts), strict=True):
            if ratio is None:
                assert not text.strip()
                continue
            assert isinstance(ratio, float)
            seen.add((by, ratio))
            for least, reason in ((ratio, None), (ratio + stricter, by)):
                if least < 0:
                    continue
                step = FineWebQuality(**off | {limit: least}, new_line_ratio=None)  # type: ignore
                assert step.apply(Batch.of_texts([text])).reasons == [reason]
    assert len(seen) > 40


def test_ratios_of_words_are_those_that_gopher_quality_compares() -> None:
    """As above: by a limit between a ratio and the next one, from either side."""
    off: dict[str, Any] = dict.fromkeys(parameter.name for parameter in fields(GopherQuality))
    off |= {"language": "en", "words": "language"}
    limits = {
        "textual_words": ("max_doc_words", "gopher_long_doc"),
        "mean_word_length": ("max_avg_word_length", "gopher_above_avg_threshold"),
        "hash_ratio": ("max_symbol_word_ratio", "gopher_too_many_hashes"),
        "ellipsis_ratio": ("max_symbol_word_ratio", "gopher_too_many_ellipsis"),
        "alpha_ratio": ("max_non_alpha_words_ratio", "gopher_below_alpha_threshold"),
        "stop_words": ("min_stop_words", "gopher_enough_stop_words"),
    }
    draw = random.Random(5)
    some = ["the", "cat", "of", "#tag", "# #", "…", "wait...", "7", "don't", "—", "and", "Haus"]
    texts = ["", "…", *(" ".join(draw.choices(some, k=draw.randint(1, 30))) for _ in range(60))]
    batch, seen = Batch.of_texts(texts), set()
    for by, (limit, reason) in limits.items():
        found = values(Score("r", by), *texts)
        again = [Score("r", by).apply_again(batch.only(number)) for number in range(len(texts))]
        assert found == [one.scores[0].as_py() for one in again if one.scores is not None]
        for text, ratio in zip(texts, found, strict=True):
            if ratio is None:
                assert not any(map(str.isalnum, text))
                continue
            assert isinstance(ratio, float)
            if by == "ellipsis_ratio" and "#" in text:  # one limit for both, and # comes first
                continue
            seen.add((by, ratio))
            whole, least = limit.endswith("words"), reason.split("_")[1] in ("below", "enough")
            step = 1 if whole else ratio * 1e-9
            for bound, fits in ((ratio, True), (ratio + (step if least else -step), False)):
                if bound > 0:
                    given = off | {limit: int(bound) if whole else bound}
                    reasons = GopherQuality(**given).apply(Batch.of_texts([text])).reasons or [""]
                    assert (reasons[0] != reason) == fits, (by, text, bound)
    assert len(seen) > 100


def test_a_ratio_of_words_takes_their_language() -> None:
    found = [values(Score("w", "textual_words", words=words), "z.B. das") for words in ("de", "en")]
    assert found == [[2.0], [3.0]]
    assert values(Score("w", "textual_words", words="space"), "z.B. das, so") == [3.0]
    with pytest.raises(UsageError, match="score: words is 'de', expected en"):
        Score("w", "words", words="de")


def test_languages_are_those_of_the_filter() -> None:
    texts = [ENGLISH, GERMAN, ""]
    assert values(Score("lang", "language"), *texts)[:2] == ["en", "de"]
    best = values(Score("p", "language_score"), *texts)
    english = values(Score("p", "language_score", label="en"), *texts)
    assert english[0] == best[0]
    assert isinstance(english[1], float)
    assert english[1] < 0.1
    for text, score in zip(texts, english, strict=True):
        assert isinstance(score, float)
        for threshold, reason in ((score, "language"), (score - 1e-9, None)):
            if threshold >= 0:
                step = Language(("en",), threshold)
                assert step.apply(Batch.of_texts([text])).reasons == [reason]


def test_a_text_that_a_model_says_nothing_of_has_no_label(tmp_path) -> None:
    model = str(write_model(tmp_path / "m.bin"))
    texts = ["house", "nothing", "house beta beta &"]
    # Of two labels with the same score, the first in the alphabet.
    assert values(Score("kind", "fasttext", model=model), *texts) == ["good", None, "good"]
    step = Score("p", "fasttext_score", model=model)
    assert [value is None for value in values(step, *texts)] == [False, True, False]
    of_label = Score("p", "fasttext_score", model=model, label="odd")
    assert values(of_label, "nothing") == [0.0]


def test_labels_of_a_file_may_have_more_than_two_gib() -> None:
    """Offsets of 64 bits from the step to the file and back; Parquet stores none."""
    labels = pa.array(["en", None, "de"], Score("l", "language").score_type)
    assert labels.type == pa.large_string()
    schema = score_schema({"l": labels.type})
    table = joined([scored(np.array([5, 2, 3]), "l", labels)], schema)
    assert from_bytes(to_bytes(table), "x").equals(table)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_condition_reads_scores_beside_columns(as_json: bool) -> None:
    columns = {"n": pa.array(["1", "2.5", None]) if as_json else pa.array([1, 2.5, None])}
    batch = Batch.of_texts(["a", "bb", "ccc"])
    batch = Batch(0, batch.rows, batch.texts, columns, as_json)
    batch = batch.with_scores({"size": pa.array([1.0, 2.0, None]), "k": pa.array(["x", None, "y"])})
    assert Where("size < n").apply(batch).reasons == ["where", None, "where"]
    assert Where("K = 'y' OR Size = 1").apply(batch).reasons == [None, "where", None]
    assert Where("length(text) > 1 AND size IS NULL").apply(batch).reasons == ["where"] * 2 + [None]
