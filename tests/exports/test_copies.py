"""How many duplicates a document had, in exports of text, against plain loops."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.curated import decisions_in
from support.growing import append, build

import fineshards
from fineshards.errors import UsageError

RECIPE = """
[[steps]]
use = "exact"

[[steps]]
use = "length"
min_chars = 3

[[steps]]
use = "minhash"
n_grams = 2
threshold = 0.6
"""


def texts_with_families(seed: int, count: int) -> list[str]:
    """Texts that are equal, or nearly, to earlier ones, which are so to others."""
    draw = random.Random(seed)
    texts: list[str] = []

    def word() -> str:
        return "".join(draw.choices("abcdefgh", k=5))

    for _ in range(count):
        kind = draw.random()
        if texts and kind < 0.3:
            text = draw.choice(texts)
        elif texts and kind < 0.6:
            words = draw.choice(texts).split(" ")
            words[draw.randrange(len(words))] = word()
            text = " ".join(words)
        else:
            text = " ".join(word() for _ in range(40)) if kind < 0.95 else "x"
        texts.append(text)
    return texts


def write(path: Path, texts: list[str]) -> Path:
    pq.write_table(pa.table({"text": texts}), path)
    return path


@pytest.mark.curation
def test_copies_are_those_that_were_dropped_for_a_document(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    files = [texts_with_families(seed, 150) for seed in (1, 2)]
    files[1] += files[0][::3]  # copies of documents of the generation before
    paths = [write(tmp_path / f"{n}.parquet", texts) for n, texts in enumerate(files)]
    out = tmp_path / "out"
    build(out, paths[0], f"--recipe={tmp_path}/recipe.toml", "--keep_keys", "--test_fraction=0.2")
    append(out, paths[1])
    witnesses = {
        (file, row): ((witness_file, witness_row), step)
        for file, decisions in enumerate(decisions_in(out, 2))
        for row, step, _, _, witness_file, witness_row, _ in decisions
        if witness_file is not None and witness_row is not None
    }
    expected: dict[str, Counter[tuple[str, int]]] = {"exact": Counter(), "near": Counter()}
    chains = 0
    for witness, step in witnesses.values():
        while witness in witnesses:
            witness, chains = witnesses[witness][0], chains + 1
        expected["near" if step == 2 else "exact"][f"{witness[0]}.parquet", witness[1]] += 1
    assert chains > 10
    assert all(sum(each.values()) > 20 for each in expected.values())
    fineshards.export(out, tmp_path / "text", "text", copies=True)
    rows = [
        row
        for path in (tmp_path / "text/data").iterdir()
        for row in pq.read_table(path).to_pylist()
    ]
    for row in rows:
        for kind, counts in expected.items():
            assert row[f"{kind}_copies"] == counts[row["file"], row["row"]], (kind, row)
    # The witness of each duplicate stayed, but for texts that were too short.
    short = sum(
        counts[place]
        for counts in expected.values()
        for place in counts
        if len(files[int(place[0][0])][place[1]]) < 3
    )
    found = sum(row["exact_copies"] + row["near_copies"] for row in rows)
    assert found + short == len(witnesses)


def test_copies_need_a_recipe_that_drops_duplicates(tmp_path: Path) -> None:
    build(tmp_path / "out", write(tmp_path / "rows.parquet", ["a", "b"]))
    with pytest.raises(UsageError, match="--copies: the recipe of the dataset drops no duplicates"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", copies=True)
    with pytest.raises(UsageError, match="--copies: --to raw has tokens only"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "raw", copies=True)
