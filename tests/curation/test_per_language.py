"""Steps with tables for languages: as if the documents of each language had a recipe of their own.

Whole builds of such recipes are compared in tests/pipeline/test_curated_builds.py.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from support.curated import write_recipe

from fineshards.cli.cli import main
from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator, describe, golden_sha256
from fineshards.curation.recipe import Recipe, load_steps, make_step, named_step, parse_recipe
from fineshards.curation.recipe_text import toml_of
from fineshards.curation.step import Judge
from fineshards.curation.steps import C4Quality, GopherQuality, Length, PerLanguage, Score
from fineshards.errors import FineshardsError, InputError, UsageError
from fineshards.shards.tables.decisions import NO_DECISIONS

SENTENCES = {
    "eng": [
        *("The old cat sat with me by the door.", "To be or not to be, that is it.", "- a bullet"),
        *("Rain fell on all of the houses that we have.", "Who was with you?", "{ x", "He left..."),
    ],
    "deu_Latn": [
        *("Die Katze und der Hund sind, z.B. im Winter, im Haus.", "Es wird u. a. gesagt, daß …"),
        *("Der Regen fiel auf die Dächer.", "Na ja...", "Wer war im Garten und warum?"),
    ],
    "fr": [
        *("L'eau, aujourd'hui, est dans la mer.", "Qu'est-ce que c'est?", "Le chat est là. Et?"),
        *("La pluie est sur le toit de la maison.", "Tout le monde est parti hier soir."),
    ],
    None: ["Nothing says which language this is.", "# # # #", "la la la la la", "It is the end."],
}
# By step: what all languages have, and what each has of its own.
OWN: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "gopher_repetition": (
        {"top_n_grams": [[2, 0.4]], "dup_n_grams": [], "dup_line_frac": 0.6},
        {
            "deu_Latn": {"language": "de", "dup_n_grams": [[2, 0.45], [3, 0.4]]},
            "fr": {"dup_line_frac": False, "top_n_grams": [[1, 0.4]], "dup_line_char_frac": 0.5},
        },
    ),
    "c4_quality": (
        {"min_num_sentences": 3, "min_words_per_line": 2},
        {"deu_Latn": {"language": "de", "filter_no_terminal_punct": False}, "fr": {}},
    ),
    "gopher_quality": (
        {"min_doc_words": 12, "max_symbol_word_ratio": 0.2},
        {
            "deu_Latn": {
                "language": "de",
                "stop_words": ["und", "der", "die", "im"],
                "max_avg_word_length": 4.5,
            },
            "fr": {"stop_words": ["le", "la", "est"], "min_doc_words": False},
        },
    ),
    "fineweb_quality": (
        {"short_line_length": 24, "line_punct_thr": 0.4, "char_duplicates_ratio": 0.5},
        {
            "deu_Latn": {"language": "de", "char_duplicates_ratio": 0.3},
            "fr": {"language": "it", "short_line_thr": False, "short_line_length": 30},
        },
    ),
}


def documents(seed: int, count: int) -> tuple[list[str], list[str | None]]:
    """Texts of several sentences, and their languages; some have one that no table has."""
    draw = random.Random(seed)
    languages = [draw.choice([*SENTENCES, None]) for _ in range(count)]
    texts = [
        draw.choice(["\n", " ", "\n\n"]).join(
            draw.choice(SENTENCES[language]) for _ in range(draw.randint(0, 9))
        )
        for language in languages
    ]
    return texts, languages


def batch_of(texts: list[str], languages: list[str | None], as_json: bool = False) -> Batch:
    values = [x if x is None or not as_json else json.dumps(x) for x in languages]
    columns = {"language": pa.array(values, pa.string())}
    array = pa.array(texts, pa.large_string())
    return Batch(0, np.arange(len(texts)), array, columns, as_json)


def with_tables(use: str) -> tuple[Judge, dict[str | None, Judge]]:
    """A step with tables, and by language the step that a recipe for it alone would have."""
    common, own = OWN[use]
    tables = [{"label": label, **parameters} for label, parameters in own.items()]
    given = common | {"language_column": "language", "per_language": tables}
    alone = {
        label: make_step(use, common | {"language": label} | parameters, "alone").step
        for label, parameters in own.items()
    }
    others = make_step(use, common, "alone").step
    step = make_step(use, given, "the test").step
    assert isinstance(step, Judge)
    return step, {**alone, "eng": others, None: others}  # type: ignore[dict-item]


@pytest.mark.parametrize("use", OWN)
@pytest.mark.parametrize("as_json", [False, True])
def test_each_document_is_judged_by_the_step_of_its_language(use: str, as_json: bool) -> None:
    step, alone = with_tables(use)
    texts, languages = documents(5, 300)
    found = step.apply(batch_of(texts, languages, as_json))
    seen = set()
    for index, (text, language) in enumerate(zip(texts, languages, strict=True)):
        once = alone[language].apply_again(Batch.of_texts([text]))
        again = step.apply_again(batch_of([text], [language], as_json))
        assert found.reasons is not None
        assert found.reasons[index] == (once.reasons or [None])[0] == (again.reasons or [None])[0]
        if found.texts is not None and once.texts is not None and found.reasons[index] is None:
            assert found.texts[index] == once.texts[0]
        seen.add((language, found.reasons[index]))
    assert len(seen) > 8


@pytest.mark.parametrize("together", [1, 3, 1000])
def test_a_recipe_for_languages_is_a_recipe_for_each(together: int) -> None:
    """In batches of any size, where steps take words over from each other."""
    texts, languages = documents(6, 200)
    made = [with_tables(use) for use in OWN]
    expected = []
    for text, language in zip(texts, languages, strict=True):
        left: str | None = text
        for _, alone in made:
            outcome = alone[language].apply_again(Batch.of_texts([left or ""]))
            if outcome.reasons is not None and outcome.reasons[0] is not None:
                left = None
                break
            left = left if outcome.texts is None else outcome.texts[0]
        if left is not None:
            expected.append(left)
    curator, kept = Curator(Recipe([step for step, _ in made]).steps), []
    for start in range(0, len(texts), together):
        part = slice(start, start + together)
        judged = curator.judge(batch_of(texts[part], languages[part]), 0, NO_DECISIONS)
        kept += judged.kept.strings
    assert kept == expected
    assert 10 < len(kept) < 190


def test_words_that_a_part_found_are_known_to_the_batch() -> None:
    texts, languages = documents(7, 50)
    batch, (step, _) = batch_of(texts, languages), with_tables("gopher_quality")
    step.apply(batch)
    first = batch.derived("words de", lambda missing: [None] * len(missing))
    assert [each is None for each in first] == [each != "deu_Latn" for each in languages]


def test_a_record_is_read_as_it_was_and_does_not_depend_on_the_order_of_tables() -> None:
    recipe = """
        [[steps]]
        use = "gopher_quality"
        min_doc_words = 20
        language_column = "language"
        [[steps.per_language]]
        label = "sco"
        language = "en"
        [[steps.per_language]]
        label = "deu"
        language = "de"
        min_doc_words = false
        max_doc_words = 100_000
        stop_words = ["und"]
        """
    (named,) = parse_recipe(recipe, "it").steps
    record = named.record()
    assert load_steps([record]) == [named]
    assert parse_recipe(toml_of(Recipe([named])), "it").steps == (named,)
    tables = record.parameters["per_language"]
    assert tables == [
        {"label": "deu", "language": "de", "min_doc_words": None, "stop_words": ["und"]},
        {"label": "sco", "language": "en"},
    ]
    plain = GopherQuality(min_doc_words=20)
    german = GopherQuality(min_doc_words=None, stop_words=("und",), language="de")
    in_python = PerLanguage({"sco": plain, "deu": german}, plain, "language")
    assert Recipe([in_python]).steps == (named,)
    assert named.step.columns == ("language",)
    assert set(named.step.pins()) == {"spacy", "unicode"}


def test_a_language_inherits_what_has_no_effect_for_it_and_refuses_its_own() -> None:
    text = """
        [[steps]]
        use = "gopher_quality"
        language = "fr"
        stop_words = ["le"]
        language_column = "language"
        per_language = [
            {label = "de", min_stop_words = false}, {label = "it", words = "space"},
            {label = "es", words = "space"%s},
        ]"""
    recipe = parse_recipe(text % "", "a.toml")
    (named,) = recipe.steps
    assert isinstance(named.step, PerLanguage)
    languages = {label: one.language for label, one in named.step.steps.items()}
    assert languages == {"de": "de", "it": "fr", "es": "fr"}
    assert parse_recipe(toml_of(recipe), "b.toml").steps == recipe.steps
    with pytest.raises(UsageError, match=r"a.toml, step 1 .*: per_language \(es\).* language has"):
        parse_recipe(text % ', language = "es"', "a.toml")


def test_what_has_no_effect_for_the_other_languages_may_have_one_for_some() -> None:
    text = """
        [[steps]]
        use = "gopher_quality"
        stop_words = ["le"]
        min_stop_words = false
        language_column = "language"
        per_language = [{label = "fr", min_stop_words = 1}, {label = "de", max_doc_words = 9}%s]"""
    recipe = parse_recipe(text % "", "a.toml")
    step = recipe.steps[0].step
    assert isinstance(step, PerLanguage)
    assert Recipe([step]).steps == recipe.steps
    assert load_steps([recipe.steps[0].record()])[0].step == step
    nowhere = text.replace("fr", "nl").replace("min_stop_words = 1", 'stop_words = ["de"]')
    for wrong, table in ((nowhere, ""), (text, ', {label = "es", stop_words = ["el"]}')):
        with pytest.raises(UsageError, match=r"a.toml, step 1 .*: stop_words has no effect with"):
            parse_recipe(wrong % table, "a.toml")


def test_golden_documents_are_those_of_each_language() -> None:
    def golden(german: int) -> str:
        step = PerLanguage({"de": Length(min_chars=german)}, Length(5), "x")
        return golden_sha256([named_step(step)])

    assert golden(5) != golden(100)
    assert golden(100) == golden_sha256([*map(named_step, (Length(5), Length(100)))])


def test_a_step_that_is_other_code_than_at_launch_is_refused() -> None:
    few = C4Quality(min_num_sentences=1)
    step = PerLanguage({"nl": few, "de": C4Quality()}, C4Quality(), "language")
    assert step.REWRITES
    record = describe(Recipe([step]).steps, False, ())
    assert record.steps[0].use == "c4_quality"
    # Whatever the order of the tables was.
    Curator.of(record)
    with pytest.raises(FineshardsError, match="golden documents"):
        Curator.of(structs.replace(record, golden_sha256="0" * 64))


def test_pins_of_several_files_are_all_kept(tmp_path: Path) -> None:
    paths = [tmp_path / "de", tmp_path / "en"]
    for path in paths:
        path.write_text(f"word of {path.name}\n")
    parameters = {
        "words": str(paths[1]),
        "language_column": "language",
        "per_language": [{"label": "de", "words": str(paths[0])}],
    }
    assert set(map(str, paths)) < set(make_step("c4_badwords", parameters, "").step.pins())


@pytest.mark.parametrize(
    ("use", "parameters", "words"),
    [
        ("length", {"per_language": [{"label": "de"}]}, "give language_column"),
        ("length", {"language_column": "l", "per_language": []}, "give language_column"),
        ("length", {"language_column": "l", "per_language": {"de": 3}}, "give language_column"),
        ("length", {"language_column": "l", "per_language": [{}]}, "label is None, expected"),
        (
            "length",
            {"language_column": "l", "per_language": [{"label": "a"}, {"label": "a"}]},
            "table 2 of per_language: label is 'a', expected a language as l names it",
        ),
        (
            "length",
            {"language_column": "l", "per_language": [{"label": "a", "min_char": 3}]},
            "table 1 of per_language (a): unknown parameter 'min_char'; it has",
        ),
        (
            "gopher_quality",
            {"language_column": "l", "per_language": [{"label": "deu_Latn"}]},
            "(deu_Latn): gopher_quality: language is 'deu_Latn', expected one of",
        ),
        (
            "gopher_quality",
            {"language_column": "l", "per_language": [{"label": "x", "min_doc_words": -1}]},
            "min_doc_words is -1, expected a whole number",
        ),
        ("gopher_quality", {"langauge_column": "l"}, "Did you mean language_column?"),
        (
            "minhash",
            {"language_column": "l", "per_language": [{"label": "de"}]},
            "unknown parameter 'language_column'",
        ),
    ],
)
def test_a_mistake_in_a_table_is_a_sentence(
    use: str, parameters: dict[str, Any], words: str
) -> None:
    common = {"min_chars": 3} if use == "length" else {}
    with pytest.raises(UsageError) as caught:
        make_step(use, common | parameters, "r.toml, step 1")
    assert str(caught.value).startswith("r.toml, step 1: ")
    assert words in str(caught.value)


def test_steps_in_python_are_of_one_kind() -> None:
    with pytest.raises(UsageError, match="expected a Length for each language"):
        PerLanguage({"de": GopherQuality()}, Length(5), "language")
    with pytest.raises(UsageError, match="expected a Length for each language"):
        PerLanguage({}, Length(5), "language")
    score = Score("size", by="words")
    with pytest.raises(UsageError, match="expected a filter or a rewrite"):
        PerLanguage({"de": score}, score, "language")


def test_a_language_that_is_no_text_names_its_row() -> None:
    step = PerLanguage({"de": Length(5)}, Length(6), "n")
    batch = Batch(0, np.arange(2), pa.array(["a", "b"]), {"n": pa.array([None, 3])})
    with pytest.raises(InputError, match=r"row 1: its 'n' is int 3, expected a string"):
        step.apply(batch)


def test_a_recipe_is_checked_on_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, languages = documents(8, 60)
    rows = [{"text": x, "language": y} for x, y in zip(texts, languages, strict=True)]
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common, own = OWN["gopher_quality"]
    tables = [{"label": label, **parameters} for label, parameters in own.items()]
    given = common | {"language_column": "language", "per_language": tables}
    recipe = write_recipe(tmp_path / "recipe.toml", [("gopher_quality", given)])
    assert main(["recipe", "check", str(recipe), f"--input={source}"]) == 0
    assert "1 gopher_quality" in capsys.readouterr().out
