"""How many duplicates a document had, in exports of text, against plain loops."""

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


@pytest.mark.curation
def test_documents_are_repeated_by_their_copies_in_a_mixture(tmp_path: Path) -> None:
    """As docs/curation.md says: a dataset per number of repetitions, and weights by length."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    source = write(tmp_path / "in.parquet", texts_with_families(3, 200))
    build(tmp_path / "out", source, f"--recipe={tmp_path}/recipe.toml", "--test_shards=0")
    fineshards.export(tmp_path / "out", tmp_path / "text", "text", copies=True)
    rows = [
        row
        for path in sorted((tmp_path / "text/data").iterdir())
        for row in pq.read_table(path).to_pylist()
    ]
    copies = "exact_copies + near_copies"
    bands = {f"{copies} = 0": 1, f"{copies} BETWEEN 1 AND 2": 2, f"{copies} > 2": 5}
    sources = {}
    for number, condition in enumerate(bands):
        flags = [f"--where={condition}", "--test_shards=0", "--shuffle_seed=1"]
        build(tmp_path / f"{number}", tmp_path / "text/data", *flags)
        sources[condition] = fineshards.TokenDataset(tmp_path / f"{number}", sequence_length=32)
    mix = fineshards.Mixture(
        {name: (source, bands[name] * len(source)) for name, source in sources.items()}
    )
    total = sum(bands[name] * len(source) for name, source in sources.items())
    drawn = Counter(mix[draw] for draw in range(total))
    epochs = {
        (name, epoch * len(source) + sample): 1
        for name, source in sources.items()
        for sample in range(len(source))
        for epoch in range(bands[name])
    }
    assert drawn == epochs  # each sample as often as its band says, the epochs one by one
    for name, meant in zip(bands, ([0], [1, 2], range(3, 99)), strict=True):
        texts = sources[name].all_documents()
        of_band = [row["text"] for row in rows if row["exact_copies"] + row["near_copies"] in meant]
        assert sorted(sources[name].decode(each.tokens[1:]) for each in texts) == sorted(of_band)
        assert len(of_band) > 3


def test_copies_need_a_recipe_that_drops_duplicates(tmp_path: Path) -> None:
    build(tmp_path / "out", write(tmp_path / "rows.parquet", ["a", "b"]))
    with pytest.raises(UsageError, match="--copies: the recipe of the dataset drops no duplicates"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "text", copies=True)
    with pytest.raises(UsageError, match="--copies: --to raw has tokens only"):
        fineshards.export(tmp_path / "out", tmp_path / "x", "raw", copies=True)
