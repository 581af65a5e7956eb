"""Why documents are dropped: the reasons of the steps, and what a filter measured."""

import json
import pickle
from pathlib import Path

import pytest
from support.checkout import docs_program

from fineshards.cli.cli import main
from fineshards.curation.batch import Batch
from fineshards.curation.step import Judge, Reason
from fineshards.curation.steps.c4_quality import C4Quality
from fineshards.curation.steps.fineweb_quality import FineWebQuality
from fineshards.curation.steps.gopher_quality import GopherQuality
from fineshards.curation.steps.gopher_repetition import GopherRepetition
from fineshards.curation.steps.language import Language
from fineshards.curation.steps.length import Length

WORDS = GopherQuality(min_doc_words=2, max_doc_words=5, min_avg_word_length=2, min_stop_words=0)
LETTERS = GopherQuality(min_doc_words=2, min_avg_word_length=1, min_stop_words=1)
GRAMS = GopherRepetition(top_n_grams=((2, 0.6),), dup_n_grams=((2, 0.2),))
LINES = GopherRepetition(dup_line_char_frac=0.7, dup_para_frac=0)
LEAST = FineWebQuality(short_line_length=9)

# Each text, and what was found in it; numbers counted by hand.
EXAMPLES: list[tuple[Judge, str, str, str]] = [
    (Length(min_chars=4), "six", "min_chars", "3 characters, below 4: min_chars"),
    (Length(max_chars=2), "six", "max_chars", "3 characters, above 2: max_chars"),
    (Length(min_bytes=1500), "ä" * 700, "min_bytes", "1,400 bytes, below 1,500: min_bytes"),
    (Length(max_chars=2, max_bytes=3), "ää", "max_bytes", "4 bytes, above 3: max_bytes"),
    (WORDS, "one !", "gopher_short_doc", "1 words, below 2: min_doc_words"),
    (GopherQuality(min_doc_words=0), "", "gopher_short_doc", "there are no words"),
    (WORDS, "a b c d e f", "gopher_long_doc", "6 words, above 5: max_doc_words"),
    (
        WORDS,
        "a bb a",
        "gopher_below_avg_threshold",
        "1.3 characters per word, below 2.0: min_avg_word_length",
    ),
    (
        WORDS,
        "abcdefghijkl abcdefghijkl",
        "gopher_above_avg_threshold",
        "12.0 characters per word, above 10.0: max_avg_word_length",
    ),
    (
        LETTERS,
        "a b c #",
        "gopher_too_many_hashes",
        "0.25 # per word, above 0.1: max_symbol_word_ratio",
    ),
    (
        LETTERS,
        "a b c …",
        "gopher_too_many_ellipsis",
        "0.25 ellipses per word, above 0.1: max_symbol_word_ratio",
    ),
    (
        GopherQuality(min_doc_words=2, min_avg_word_length=1),
        "- a\n- b",
        "gopher_too_many_bullets",
        "1.0 of the lines begin with a bullet, above 0.9: max_bullet_lines_ratio",
    ),
    (
        GopherQuality(min_doc_words=2, min_avg_word_length=1, max_symbol_word_ratio=0),
        "a b…\nc d",
        "gopher_too_many_end_ellipsis",
        "0.5 of the lines end with an ellipsis, above 0.3: max_ellipsis_lines_ratio",
    ),
    (
        LETTERS,
        "a b c 1 2",
        "gopher_below_alpha_threshold",
        "0.6 of the words have a letter, below 0.8: max_non_alpha_words_ratio",
    ),
    (
        LETTERS,
        "cat sat",
        "gopher_enough_stop_words",
        "0 different stop words, below 1: min_stop_words",
    ),
    (GRAMS, "", "empty", "there is no text"),
    (
        GopherRepetition(),
        "a\n\nb\n\na\n\na",
        "dup_para_frac",
        "0.5 of the paragraphs repeat another, above 0.3: dup_para_frac",
    ),
    (
        LINES,
        "abcdefgh\n\nabcdefgh",
        "dup_para_char_frac",
        "0.44 of the characters are in repeated paragraphs, above 0.2: dup_para_char_frac",
    ),
    (
        GopherRepetition(dup_para_frac=0, dup_para_char_frac=0),
        "a\na",
        "dup_line_frac",
        "0.5 of the lines repeat another, above 0.3: dup_line_frac",
    ),
    (
        GopherRepetition(dup_line_frac=0.6),
        "abcd\nabcd",
        "dup_line_char_frac",
        "0.44 of the characters are in repeated lines, above 0.2: dup_line_char_frac",
    ),
    (
        GRAMS,
        "a b a b a b",
        "top_2_gram",
        "0.82 of the characters are in the most frequent 2 words, above 0.6: top_n_grams",
    ),
    (
        GRAMS,
        "ab cd ef gh ab cd",
        "duplicated_2_n_grams",
        "0.24 of the characters are in repeated sequences of 2 words, above 0.2: dup_n_grams",
    ),
    (LEAST, "  \n", "empty", "there are no words"),
    (
        LEAST,
        "A line\nAnother one\nThird line",
        "line_punct_ratio",
        "0.0 of the lines end with one of stop_chars, below 0.12: line_punct_thr",
    ),
    (
        LEAST,
        "A line.\nAnother.\nThe third line is long.\nA b.",
        "short_line_ratio",
        "0.75 of the lines have at most 9 characters, above 0.67: short_line_thr",
    ),
    (
        FineWebQuality(short_line_thr=None),
        "A line.\nA line.",
        "char_dup_ratio",
        "0.5 of the characters are in repeated lines, above 0.01: char_duplicates_ratio",
    ),
    (
        FineWebQuality(short_line_thr=None),
        "One.\nTwo.\nSix.",
        "list_ratio",
        "0.33 line breaks per word, above 0.3: new_line_ratio",
    ),
    (
        C4Quality(),
        "A line of words.\nNot this",
        "too_few_sentences",
        "1 sentences are left, below 5: min_num_sentences",
    ),
    (C4Quality(), "A lorem ipsum line.", "lorem_ipsum", "a line has lorem ipsum: filter_lorem_ips"),
    (C4Quality(), "A line with {.", "curly_bracket", "a line has {: filter_curly_bracket"),
    (
        Language(languages=("de", "fr")),
        "This is what we had in mind.",
        "language",
        " is the score of de, fr, not above 0.65: language_threshold",
    ),
]


@pytest.mark.parametrize(("step", "text", "reason", "measured"), EXAMPLES)
def test_a_filter_says_what_it_measured(step: Judge, text: str, reason: str, measured: str) -> None:
    batch = Batch.of_texts([text])
    assert list(step.apply(batch).reasons or ()) == [reason]
    (found,) = step.apply_again(batch).reasons or ()
    assert isinstance(found, Reason)
    assert found == reason
    assert measured in pickle.loads(pickle.dumps(found)).measured


def test_the_page_of_reasons_has_those_of_each_filter() -> None:
    made = {(step.NAME, reason.replace("_2_", "_N_")) for step, _, reason, _ in EXAMPLES}
    reasons = docs_program("make_reasons").reasons
    assert {(name, reason) for name, _ in made for reason in reasons(name)} == made


@pytest.mark.curation
def test_inspect_shows_what_the_step_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text as the step found it, after a rewrite, and beside reasons without a measure."""
    texts = ["tail <b>\n***\n***\n***", "kept because it is long enough", "lorem is dropped by me"]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "recipe.toml").write_text(
        'steps = [{use = "symbol_lines"}, {use = "length", min_chars = 12},'
        '{use = "where", sql = "text NOT LIKE \'%lorem%\'"}]'
    )
    given = [f"--input={tmp_path}/a.jsonl", f"--output={tmp_path}/out", "--test_fraction=0"]
    assert main(["build", *given, f"--recipe={tmp_path}/recipe.toml"]) == 0
    capsys.readouterr()
    assert main(["inspect", f"{tmp_path}/out", "--dropped", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["shown"]
    assert [(each["reason"], each["measured"]) for each in shown] == [
        ("min_chars", "8 characters, below 12: min_chars"),
        ("where", None),
    ]
    assert main(["inspect", f"{tmp_path}/out", "--dropped"]) == 0
    assert "  found    8 characters, below 12: min_chars\n" in capsys.readouterr().out
