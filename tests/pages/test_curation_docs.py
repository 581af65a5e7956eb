"""docs/curation.md: each recipe on the page runs on the sample, and names what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.checkout import ROOT, SAMPLE

import fineshards
from fineshards.cli.cli import main
from fineshards.curation.recipe import STEPS
from fineshards.shards.tables.decisions import read_decisions
from fineshards.storage.open import open_storage

PAGE = (ROOT / "docs/curation.md").read_text()
RECIPES = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(FUNCTION,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.curation


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_a_recipe_of_the_page_drops_some_documents_and_keeps_others(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pq.read_table(SAMPLE)
    pq.write_table(table.slice(0, 30), tmp_path / "old.parquet")
    # The last rows repeat some of the first ones.
    repeated = [*range(300), *range(40, 60)]
    pq.write_table(table.take(repeated), tmp_path / "input.parquet")
    (tmp_path / "evals").mkdir()
    text = table["text"][35].as_py().replace("\n", " ").replace('"', "")
    (tmp_path / "evals/exam.jsonl").write_text(f'{{"question": "{text}"}}\n')
    (tmp_path / "my_steps.py").write_text(FUNCTION)
    (tmp_path / "recipe.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    manifest = build_here(input="input.parquet", output="out", recipe="recipe.toml")
    steps = tomllib.loads(recipe)["steps"]
    counts = manifest.counts()
    assert counts.rows == len(repeated) == counts.documents + counts.documents_dropped
    assert counts.documents > 0
    decided = set(read_decisions(open_storage("out"), 0).table["step"].to_pylist())
    rewrites = [n for n, step in enumerate(steps) if step["use"] in ("ftfy", "pii", "symbol_lines")]
    if len(rewrites) < len(steps):
        assert decided
    assert fineshards.verify("out", sample=100).problems == []


def test_every_step_is_on_the_page() -> None:
    for name in STEPS:
        assert f"`{name}`" in PAGE or f'"{name}"' in PAGE


def test_the_commands_of_the_page_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for name in set(re.findall(r"^    fineshards (\w+)", PAGE, re.MULTILINE)):
        assert main(["help", name]) == 0
    capsys.readouterr()
