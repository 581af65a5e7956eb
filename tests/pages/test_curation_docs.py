"""docs/curation.md: each recipe on the page runs on the sample, and names what is there."""

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.checkout import ROOT, SAMPLE

import fineshards
from fineshards.shards.tables.decisions import read_decisions
from fineshards.storage.open import open_storage

PAGE = (ROOT / "docs/curation.md").read_text()
RECIPES = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FUNCTION, BY_SCORE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

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


def test_samples_are_drawn_as_often_as_the_score_of_their_documents_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the page as printed, with a score of which some rows have none."""
    table = pq.read_table(SAMPLE)
    texts = table["text"].to_pylist()
    scores = [(3, 4, 5, None)[len(text) % 4] for text in texts]
    (tmp_path / "edu").mkdir()
    path = tmp_path / "edu/rows.parquet"
    pq.write_table(table.append_column("int_score", pa.array(scores, pa.int64())), path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(BY_SCORE, "docs/curation.md", "exec"), names)
    sources, drawn = names["sources"], Counter[tuple[str, int]]()
    for draw in range(sum(weight for _, weight in sources.values())):
        name, number = names["mix"][draw]
        drawn[name, number % len(sources[name][0])] += 1
    for score, often in ((3, 1), (4, 2), (5, 4)):
        name = f"edu-{score}"
        dataset = sources[name][0]
        assert [drawn[name, number] for number in range(len(dataset))] == [often] * len(dataset)
        found = pq.read_table(f"{name}/metadata/documents")["row"].unique().to_pylist()
        assert sorted(found) == [row for row, given in enumerate(scores) if given == score]
