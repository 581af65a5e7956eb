"""The filters on words and lines: edge cases, parameters, and the fast way against the plain one.

That they decide as datatrove does is tested in tests/with_datatrove.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkout import SAMPLE

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import make_step
from fineshards.curation.step import Judge
from fineshards.curation.steps.c4_badwords import C4BadWords
from fineshards.curation.steps.c4_quality import C4Quality
from fineshards.curation.steps.fineweb_quality import FineWebQuality
from fineshards.curation.steps.gopher_quality import GopherQuality
from fineshards.curation.steps.gopher_repetition import GopherRepetition
from fineshards.curation.steps.unwanted_lines import DclmLines
from fineshards.errors import InputError, UsageError

LOW: list[Judge] = [
    GopherRepetition(
        dup_line_frac=0.6,
        dup_para_frac=None,
        dup_line_char_frac=None,
        top_n_grams=((2, 0.5), (3, 0.6)),
        dup_n_grams=((3, 0.4), (5, 0.2)),
    ),
    GopherQuality(min_doc_words=3, min_avg_word_length=1, max_bullet_lines_ratio=0.5),
    GopherQuality(min_doc_words=3, min_avg_word_length=1, words="space"),
    GopherRepetition(top_n_grams=((2, 0.5),), dup_n_grams=((3, 0.4), (5, 0.2)), words="space"),
    C4Quality(min_num_sentences=3, filter_no_terminal_punct=False, min_words_per_line=2),
    FineWebQuality(short_line_length=8, char_duplicates_ratio=0.3),
    DclmLines(max_removed_ratio=0.3),
]
LINES = (
    *("One two three.", "- a bullet", "Ends...", "lorem ipsum", "Use JavaScript now.", "", "  "),
    *("a b a b a b", "The cat [1] and the hat.", "Hi. You. There!", "# # #", "cookies policy", "{"),
    *("to be or not to be", "x" * 1100, "U.S. vs. them?  Yes.", "\u3000wide\u2028line", "… …"),
)


def reason(step: Judge, text: str) -> str | None:
    (found,) = step.apply(Batch.of_texts([text])).reasons or [None]
    return found


@given(st.lists(st.sampled_from(LINES), max_size=8), st.sampled_from(["\n", "\n\n", " "]))
def test_the_plain_way_gives_the_same(lines: list[str], between: str) -> None:
    batch = Batch.of_texts([between.join(lines)])
    for step in LOW:
        assert step.apply(batch) == step.apply_again(batch)


def test_a_batch_is_judged_as_its_documents_are_alone() -> None:
    batch = Batch.of_texts(pq.read_table(SAMPLE)["text"].to_pylist()[::20])
    for step in LOW:
        whole = step.apply(batch)
        for index in range(len(batch)):
            alone = step.apply(batch.only(index))
            if whole.reasons is not None and alone.reasons is not None:
                assert whole.reasons[index] == alone.reasons[0]
            if whole.texts is not None and alone.texts is not None:
                assert whole.texts[index] == alone.texts[0]


@pytest.mark.parametrize("text", ["", " ", "\n", " \n\t\u00a0 "])
def test_texts_without_words_have_a_reason(text: str) -> None:
    off: dict[str, Any] = dict.fromkeys(
        ("min_doc_words", "min_stop_words", "max_symbol_word_ratio")
    )
    assert reason(GopherQuality(), text) == "gopher_short_doc"
    assert reason(GopherQuality(**off), text) == "gopher_short_doc"
    assert reason(FineWebQuality(), text) == "empty"
    assert reason(C4Quality(), text) == "too_few_sentences"
    assert reason(GopherRepetition(), text) in ("empty", "dup_line_frac", None)


def test_words_of_punctuation_have_no_average_length() -> None:
    step = GopherQuality(min_doc_words=None, max_non_alpha_words_ratio=None, min_stop_words=None)
    assert reason(step, "! ? !") is None


def test_rules_are_off_with_none() -> None:
    text = "Item\nItem\nItem\nOther"
    assert reason(FineWebQuality(), text) == "line_punct_ratio"
    off = FineWebQuality(
        line_punct_thr=None, short_line_thr=None, char_duplicates_ratio=None, new_line_ratio=None
    )
    assert reason(off, text) is None
    assert reason(GopherRepetition(), text) == "dup_line_frac"
    lines = GopherRepetition(
        dup_line_frac=None, dup_line_char_frac=None, top_n_grams=(), dup_n_grams=()
    )
    assert reason(lines, text) is None


def test_parameters_may_be_lists_as_in_a_recipe() -> None:
    pairs: Any = [[2, 0.2], [3, 0.1]]
    assert GopherRepetition(top_n_grams=pairs).top_n_grams == ((2, 0.2), (3, 0.1))
    stop_words: Any = ["le", "la"]
    assert hash(GopherQuality(stop_words=stop_words)) == hash(
        GopherQuality(stop_words=("le", "la"))
    )


def test_bad_words_are_whole_words(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("bad\nvery bad\n\n", "utf-8")
    step = C4BadWords(str(path))
    found = [reason(step, text) for text in ("so BAD!", "badly", "a_bad", "bad", "not good")]
    assert [x is not None for x in found] == [True, False, False, True, False]
    assert reason(C4BadWords(str(path), language="zh"), "badly") is not None
    assert list(step.pins()) == ["unicode", str(path)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"\n \n", "has no words"),
        (b"ok\n\xff", "is not UTF-8 at byte 3"),
    ],
)
def test_a_list_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "words"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        C4BadWords(str(path)).apply(Batch.of_texts(["a"]))


def test_a_list_of_bad_words_is_the_one_that_was_pinned(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("bad", "utf-8")
    step = C4BadWords(str(path))
    before = step.pins()
    assert reason(step, "bad") is not None
    path.write_text("other", "utf-8")
    assert reason(step, "bad") is not None
    with pytest.raises(InputError, match="changed since the job was launched"):
        reason(replace(step, language="de"), "bad")
    assert step.pins() != before
    assert reason(step, "bad") is None


def test_words_are_those_of_the_language_or_what_stands_between_white_space() -> None:
    text = "the and water's " * 49
    by_language = GopherQuality(min_doc_words=148, min_avg_word_length=1)
    assert reason(by_language, text) is None
    by_space = replace(by_language, words="space")
    assert reason(by_space, text) == "gopher_short_doc"
    assert reason(replace(by_space, min_doc_words=147), text) is None
    assert by_space.pins().keys() == {"unicode"}
    off: dict[str, Any] = dict.fromkeys(
        ("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")
    )
    repetition = GopherRepetition(**off, top_n_grams=((1, 0.5),), dup_n_grams=())
    assert reason(repetition, "he's who's she's") is None
    assert reason(repetition, "a's b's c's") == "top_1_gram"
    assert reason(replace(repetition, words="space"), "a's b's c's") is None
    assert by_space.apply(Batch.of_texts([text])) == by_space.apply_again(Batch.of_texts([text]))


def test_a_table_for_words_by_white_space_needs_no_language_of_rules() -> None:
    table = {"label": "kor_Hang", "stop_words": ["\uadf8\ub7ec\ub098"], "min_stop_words": 1}
    given = {"language_column": "language", "per_language": [table | {"words": "space"}]}
    step = make_step("gopher_quality", given, "the recipe").step
    assert step.all_steps[1].words == "space"
    with pytest.raises(UsageError, match="language is 'kor_Hang', expected one of"):
        make_step("gopher_quality", given | {"per_language": [table]}, "the recipe")
