"""Recipes of objects and functions, in place of files."""

from fractions import Fraction
from importlib import import_module
from pathlib import Path

import pytest

import fineshards
from fineshards import Recipe
from fineshards.curation import steps as steps_of_recipes
from fineshards.curation.steps import Exact, GopherQuality, Length, MinHash, UserFunction, Where
from fineshards.errors import UsageError

FUNCTION = """
def is_long(document):
    return len(document["text"].split()) >= 50


def is_in(document, dumps):
    return document["dump"] in dumps
"""


@pytest.mark.long
def test_a_recipe_of_objects_is_that_of_its_file(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions_of_a_test.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    functions = import_module("functions_of_a_test")
    dumps = ["LOCAL-lo_help", "LOCAL-gnome_help_en"]
    steps = [
        Length(min_chars=500),
        Exact("normalized", within="file"),
        MinHash(verify="none", buckets=20),
        GopherQuality(min_doc_words=None, min_stop_words=None),
        Where("text <> 'a \"quote\"'"),
        functions.is_long,
        UserFunction(functions.is_in, ("dump",), {"dumps": dumps}),
    ]
    build = {"shard_tokens": 20_000, "shuffle_seed": None, "test_fraction": Fraction(1, 50)}
    recipe = Recipe(steps, build, "for a test")
    (tmp_path / "recipe.toml").write_text(
        """
        build = { shard_tokens = 20_000, test_fraction = "0.02" }
        [[steps]]
        use = "length"
        min_chars = 500
        [[steps]]
        use = "exact"
        by = "normalized"
        within = "file"
        [[steps]]
        use = "minhash"
        verify = "none"
        buckets = 20
        [[steps]]
        use = "gopher_quality"
        min_doc_words = false
        min_stop_words = false
        [[steps]]
        use = "where"
        sql = "text <> 'a \\"quote\\"'"
        [[steps]]
        use = "functions_of_a_test:is_long"
        [[steps]]
        use = "functions_of_a_test:is_in"
        columns = ["dump"]
        dumps = ["LOCAL-lo_help", "LOCAL-gnome_help_en"]
        """
    )
    made = fineshards.build(input=sample, output=tmp_path / "a", recipe=recipe)
    read = fineshards.build(input=sample, output=tmp_path / "b", recipe=tmp_path / "recipe.toml")
    assert made == read
    jobs = [(tmp_path / name / "metadata/job.json").read_bytes() for name in "ab"]
    assert jobs[0] == jobs[1]
    assert 0 < made.totals["documents"] < 1063


def test_an_edited_function_decides_as_its_file_is(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "edited_by_a_test.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module.write_text("LEAST = 1000\ndef keep(document): return len(document['text']) > LEAST\n")
    recipe = Recipe([import_module("edited_by_a_test").keep])
    dropped = [fineshards.recipe_check(input=sample, recipe=recipe).dropped[0].documents]
    module.write_text(module.read_text().replace("1000", "20000"))
    dropped += [fineshards.recipe_check(input=sample, recipe=recipe).dropped[0].documents]
    manifest = fineshards.build(input=sample, output=tmp_path / "out", recipe=recipe)
    assert (dropped, manifest.totals["documents"]) == ([461, 1061], 2)
    assert fineshards.verify(tmp_path / "out", sample="100%").problems == []


def test_what_is_no_recipe_is_refused() -> None:
    for steps, said in (
        ([3], "3 is not a step: give a function, one of fineshards"),
        ([lambda document: True], "workers cannot import"),
    ):
        with pytest.raises(UsageError, match=said):
            Recipe(steps)
    with pytest.raises(UsageError, match=r"recipe is \[1\]; give a file, a name or"):
        fineshards.build(input="a", output="b", recipe=[1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the recipe: unknown key 'step'"):
        fineshards.build(input="a", output="b", recipe="step = 1\n")
    assert {"MinHash", "GopherQuality"} < set(dir(steps_of_recipes))
    for wrong in (Length(min_chars=3), 5):
        with pytest.raises(UsageError, match="takes a list of steps"):
            Recipe(wrong)  # type: ignore[arg-type]
    for parameters in ({"x": {"a"}}, {"x": Path("a")}):
        with pytest.raises(UsageError, match="expected what JSON has"):
            UserFunction("builtins:bool", (), parameters)
    for parameters in ({"x": None}, {1: 2}):
        recipe = Recipe([UserFunction("builtins:bool", (), parameters)])
        with pytest.raises(UsageError, match="a value that a recipe file cannot have"):
            fineshards.build(input="a", output="b", recipe=recipe)
    for name in ("columns", "batch"):
        with pytest.raises(UsageError, match=f"expected others than {name}, which are arguments"):
            UserFunction("builtins:bool", (), {name: 3})
    with pytest.raises(AttributeError, match="NoSuchStep"):
        _ = steps_of_recipes.NoSuchStep
