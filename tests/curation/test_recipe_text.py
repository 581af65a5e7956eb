"""Recipes as text, the pages about steps, and the JSON Schema of recipes."""

import importlib.util
import json
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkout import ROOT

from fineshards.cli.cli import main
from fineshards.curation.recipe import (
    STEPS,
    NamedStep,
    default_parameters,
    make_step,
    parse_recipe,
)
from fineshards.curation.recipe_text import describe_step, recipe_text, to_toml
from fineshards.curation.step import Keyed
from fineshards.errors import UsageError
from fineshards.pipeline.recipe_flags import shipped_recipes
from fineshards.shards.job.settings import RecipeRecord, StepRecord

SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("ab .\n'\"é"), inner)
)
# One of each kind of parameter; the others keep their defaults.
MADE: list[tuple[str, dict[str, Any]]] = [
    ("length", {"min_chars": 5, "max_bytes": 10**9}),
    ("where", {"sql": "text <> 'a\\d+\"\t\x7f[é]\n'"}),
    ("sample", {"rate": 0.25, "seed": 2**63}),
    ("pii", {"email_replacement": ["a@example.org", "b@example.org"], "remove_ips": False}),
    ("gopher_quality", {"min_doc_words": False, "max_avg_word_length": 12}),
    ("seen_in", {"files": ["old.jsonl"], "by": "minhash", "options": {"n_grams": 3}}),
    ("minhash", {"rule": "components", "words": "characters"}),
    ("minhash", {"verify": "none", "n_grams": 4}),
    ("minhash", {"verify": "containment", "threshold": 0.5, "candidates": 3}),
    ("lines", {}),
    ("score", {"name": "s", "by": "m:f", "type": "text", "arguments": {"model": "a", "n": 1}}),
    (
        "gopher_quality",
        {
            "language_column": "language",
            "min_doc_words": False,
            "per_language": [
                {"label": "deu_Latn", "language": "de", "min_doc_words": 3, "stop_words": ["ü"]},
                {"label": 'a "b"\n', "language": "fr"},
            ],
        },
    ),
    ("builtins:bool", {}),
    ("builtins:list", {"batch": 64, "other": 1}),
    ("builtins:dict", {"per_language": [{"a": 1}, {}], "b": 2}),
    ("builtins:dict", {"per_language": 3}),
    ("builtins:dict", {"columns": ["a"], "any key": [1, {"b": "c"}], "off": False}),
]


def record_of(named: NamedStep) -> StepRecord:
    """The record of a step, without what it would look up."""
    from fineshards.curation.recipe import parameters_of

    step = named.step
    pins = {"a model": "sha256 of\nit"}
    keyed = isinstance(step, Keyed)
    return StepRecord.of(named.use, parameters_of(step), step.VERSION, pins, keyed)


@given(VALUES)
def test_what_is_written_is_read_as_it_was(value: Any) -> None:
    assert tomllib.loads(f"value = {to_toml(value)}") == {"value": value}


@pytest.mark.parametrize("everything", [False, True])
def test_a_recipe_of_a_record_parses_to_the_same_steps(everything: bool) -> None:
    steps = [make_step(use, parameters, use) for use, parameters in MADE]
    record = RecipeRecord(tuple(map(record_of, steps)), "")
    text = recipe_text(record, "a comment\nin two lines", everything)
    assert list(parse_recipe(text, "it").steps) == steps
    assert "# a model: sha256 of it" in text
    lengths = [line for line in text.splitlines() if line.startswith(("min_chars", "max_chars"))]
    assert ("max_chars = false" in lengths) == everything


def test_a_step_with_its_defaults_has_one_line() -> None:
    record = RecipeRecord((record_of(make_step("minhash", {}, "it")),), "")
    lines = recipe_text(record).splitlines()
    assert lines == ["[[steps]]  # version 2", "# a model: sha256 of it", 'use = "minhash"']


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_parameter_of_a_step_is_described(name: str) -> None:
    step = describe_step(name)
    assert step.summary.endswith((".", ":"))
    assert all(each.description and each.type for each in step.parameters)
    required = {each.name for each in step.parameters if each.default is None}
    assert required.isdisjoint(default_parameters(name))


@pytest.fixture(scope="module")
def make_schema() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_schema", ROOT / "docs/make_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_is_that_of_the_code(make_schema: ModuleType) -> None:
    assert make_schema.PATH.read_text() == make_schema.schema_text(), "run make api"


SCHEMA = json.loads((ROOT / "docs/recipe.schema.json").read_text())


def test_shipped_recipes_fit_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for content in shipped_recipes().values():
        jsonschema.validate(tomllib.loads(content), SCHEMA)


@pytest.mark.parametrize(("use", "parameters"), MADE)
def test_what_the_code_takes_fits_the_schema(use: str, parameters: dict[str, Any]) -> None:
    jsonschema.validate({"steps": [{"use": use} | parameters]}, SCHEMA)


@pytest.mark.parametrize(
    "recipe",
    [
        {"step": []},
        {"steps": [{}]},
        {"steps": [{"use": "lenght"}]},
        {"steps": [{"use": "length", "min_char": 5}]},
        {"steps": [{"use": "length", "min_chars": "5"}]},
        {"steps": [{"use": "length", "min_chars": True}]},
        {"steps": [{"use": "where"}]},
        {"steps": [{"use": "minhash", "rule": "later"}]},
        {"steps": [{"use": "length", "per_language": [{"label": "de"}]}]},
        {"steps": [{"use": "length", "language_column": "l", "per_language": []}]},
        {"steps": [{"use": "length", "language_column": "l", "per_language": [{"max_chars": 3}]}]},
        {"steps": [{"use": "length", "language_column": "l", "per_language": [{"label": 3}]}]},
        {"steps": [{"use": "lines", "language_column": "l", "per_language": [{"label": "de"}]}]},
        {"build": {"output": "out", "shard_token": 5}},
        {"build": {"dtype": "float32"}},
    ],
)
def test_what_the_code_refuses_does_not_fit_the_schema(recipe: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(recipe, SCHEMA)


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_shipped_recipes_can_be_shown_and_parsed(name: str, capsys) -> None:
    assert main(["recipe", "show", name]) == 0
    text = capsys.readouterr().out
    assert text == shipped_recipes()[name]
    if "REPLACE-ME" in text:
        with pytest.raises(
            UsageError, match=rf"{name}, step \d \(score\): .* still says REPLACE-ME"
        ):
            parse_recipe(text, name)
    recipe = parse_recipe(text.replace('"REPLACE-ME"', '"my_scores:of"'), name)
    assert recipe.description
    assert len(recipe.steps) > 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "recipe shw",
            "show|steps|check: must be show or steps or check, got 'shw'. Did you mean show?",
        ),
        ("recipe show", "give a recipe, by file or name (c4, dclm, dolma3, fineweb, "),
        ("recipe show finweb", "Did you mean fineweb?"),
        ("recipe show fineweb --input x", "recipe show does not take --input."),
        ("recipe check fineweb --all", "recipe check does not take --all."),
        ("recipe check --input x", "give a recipe, or --where, --dedup or --decontaminate."),
        ("recipe check --dedup exact", "give --input or --dataset."),
        ("recipe steps minhsh", "there is no step 'minhsh'."),
        ("recipe steps minhash more", "unexpected argument 'more'."),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str, capsys) -> None:
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_recipe_file_is_shown_as_it_is_written(tmp_path: Path, capsys) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('# mine\n[[steps]]\nuse="length"  # short\nmin_chars=5\n')
    assert main(["recipe", "show", str(path)]) == 0
    assert capsys.readouterr().out == path.read_text()
    path.write_text('[[steps]]\nuse = "lenght"\n')
    assert main(["recipe", "show", str(path)]) == 2
    assert "step 1 (lenght): there is no step 'lenght'" in capsys.readouterr().err
