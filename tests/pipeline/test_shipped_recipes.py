"""The recipes of the package, on pages: each passes a check, and its builds decide as the steps do
one document at a time."""

import random
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT, SAMPLE
from support.curated import (
    Row,
    Steps,
    counts_in,
    curate,
    decisions_in,
    write_files,
    write_recipe,
)
from support.tiny_model import write_model

from fineshards.cli.cli import main
from fineshards.pipeline.recipe_flags import shipped_recipes

pytestmark = pytest.mark.curation

# ../shared, or further up where the repository is a worktree.
CRAWL = next(
    (path for up in ROOT.parents if (path := up / "shared/corpus/crawl-00000.parquet").exists()),
    SAMPLE,
)
PAGES = 150
CLASSIFIER = '''
def score(documents, model="", sha256=""):
    """Whole numbers from 0 to 5."""
    return [len(document["text"]) % 6 for document in documents]
'''
# The steps that decide about some of these pages.
DECIDES = {
    "c4": {"c4_quality", "sentences"},
    "dclm": {"gopher_repetition", "gopher_quality", "dclm_lines", "minhash", "lines", "where"},
    "dolma3": {"gopher_repetition", "gopher_quality", "exact", "minhash", "passages"},
    "fineweb": {"gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality", "minhash"},
    "fineweb-edu": {"where"},
    "fineweb2": {"gopher_repetition", "gopher_quality", "fineweb_quality", "minhash"},
    "massivetext": {"gopher_repetition", "gopher_quality", "minhash"},
    "nemotron-cc": {"exact", "minhash", "passages"},
}


def pages() -> list[list[Row]]:
    """Pages of two files, and a third one with copies, near copies and quotations of them."""
    sample = pq.read_table(SAMPLE).filter(pc.field("language") == "en")["text"].to_pylist()
    crawl = pq.read_table(CRAWL, columns=["text"])["text"].to_pylist()
    files, draw = [sample[:PAGES], crawl[-PAGES:]], random.Random(1)
    changed = []
    for text in [*files[0][::4], *files[1][::4]]:
        words = text.split(" ")
        at = draw.randrange(len(words))
        nearly = [*words[:at], "elsewhere", *words[at:]]
        quoted = ["News", "of", "today:", *words[at : at + 120], "and", "nothing", "more"]
        changed += [text, " ".join(nearly), " ".join([*draw.choice(crawl).split(" "), *quoted])]
    return [
        [
            {"text": text, "id": f"{file}-{row}", "group": row, "dump": draw.choice("ab")}
            for row, text in enumerate(texts)
        ]
        for file, texts in enumerate([*files, changed])
    ]


def filled(name: str, folder: Path) -> Steps:
    """The steps of a recipe, with a model and a classifier where it leaves them to the user."""
    model = str(write_model(folder / "m.bin"))
    (folder / "edu_classifier.py").write_text(CLASSIFIER)
    steps = []
    for step in tomllib.loads(shipped_recipes()[name])["steps"]:
        own: dict[str, Any] = {"model": model} if step.get("model") else {}
        own |= {"label": "odd"} if "label" in step else {}
        own |= {"by": "edu_classifier:score"} if step.get("by") == "REPLACE-ME" else {}
        own |= {"arguments": {"model": "any"}} if "arguments" in step else {}
        parameters = step | own
        steps.append((parameters.pop("use"), parameters))
    return steps


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_recipe_decides_as_its_steps_do_one_document_at_a_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files, steps = pages(), filled(name, tmp_path)
    write_files(tmp_path / "in", files)
    recipe, given = write_recipe(tmp_path / "r.toml", steps), f"--input={tmp_path}/in/*"
    assert main(["recipe", "check", str(recipe), given]) == 0
    printed = capsys.readouterr().out
    assert all(use in printed for use, _ in steps)
    output = tmp_path / "out"
    assert main(["build", given, f"--output={output}", f"--recipe={recipe}"]) == 0
    expected, decisions = curate(files, steps), decisions_in(output, len(files))
    assert decisions == expected.decisions
    assert list(counts_in(output)) == [expected.counts(file) for file in range(len(files))]
    decided = {steps[decision[1]][0] for of_file in decisions for decision in of_file}
    assert decided >= DECIDES[name]
    assert sum(of["documents"] for of in counts_in(output)) > 0


@pytest.mark.parametrize("name", ["fineweb-edu", "dclm", "nemotron-cc", "dolma3"])
def test_a_recipe_that_needs_a_model_says_so(name: str, tmp_path: Path, capsys) -> None:
    given = ["build", f"--input={SAMPLE}", f"--output={tmp_path}/out", f"--recipe={name}"]
    assert main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name}, step " in line
    assert "still says REPLACE-ME. Write your own value there" in line
