"""The examples that need no torch run from any folder, and what they print or store is true."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from support.checkout import ROOT, SAMPLE
from support.dataset_contents import Contents
from support.foreign_readers import read_megatron

import fineshards
from fineshards.curation.recipe import parse_recipe
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.tables.decisions import read_decisions
from fineshards.storage.open import open_storage

EXAMPLES = ROOT / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints; it runs in a folder."""
    command = [sys.executable] if name.endswith(".py") else []
    done = subprocess.run(
        [*command, EXAMPLES / name, *arguments],
        cwd=folder,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifest_of(folder: Path) -> Manifest:
    return Manifest.load_finished(open_storage(str(folder)))


@pytest.mark.long
def test_mixed_datasets_have_the_shares_of_their_weights(tmp_path: Path) -> None:
    printed = run("mix_datasets.py", tmp_path)
    english = pc.sum(pc.equal(pq.read_table(SAMPLE)["language"], "en")).as_py()
    assert manifest_of(tmp_path / "mixed/english").totals["documents"] == english
    assert "steps 0 to 24: english 80%, other 20%" in printed
    assert "steps 25 to 49: english 25%, other 75%" in printed


@pytest.mark.growing
def test_months_are_appended_while_a_run_trains(tmp_path: Path) -> None:
    printed = run("append_by_month.py", tmp_path, "--output=out")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    web, whole = tmp_path / "out/web", tmp_path / "out/whole"
    manifest = manifest_of(web)
    assert manifest.generation == 3
    assert manifest.totals["documents"] == pq.read_metadata(SAMPLE).num_rows
    grown, built = Contents.read(web), Contents.read(whole)
    for split in ("test", "train"):
        np.testing.assert_array_equal(grown.tokens[split], built.tokens[split])
        assert f"{len(built.tokens[split]):,} tokens of {split} are equal" in printed


@pytest.mark.long
def test_the_export_for_megatron_has_the_documents_of_the_dataset(tmp_path: Path) -> None:
    printed = run("export_for_megatron.py", tmp_path)
    exported = tmp_path / "exported"
    expected = Contents.read(exported / "dataset").ended("train")
    document = read_megatron(exported / "megatron/train_0000")[1]
    assert document == expected[1].tolist()
    assert f"document 1 of train_0000: {len(document)} tokens" in printed
    (stem,) = re.findall(r"^--data-path (\S+)", printed, re.MULTILINE)
    assert (tmp_path / stem).with_suffix(".bin").is_file()


@pytest.mark.long
def test_the_notebook_has_the_outputs_of_a_run() -> None:
    make_notebook = runpy.run_path(str(ROOT / "docs/make_notebook.py"))
    run_again = make_notebook["executed"]()
    assert make_notebook["NOTEBOOK"].read_text() == run_again, "run make notebook"


@pytest.mark.curation
def test_the_recipe_drops_what_its_check_said(tmp_path: Path) -> None:
    printed = run("curate.sh", tmp_path, "curated")
    checked, built = re.findall(r"^  dataset +(\d+) documents", printed, re.MULTILINE)
    counts = manifest_of(tmp_path / "curated").counts()
    assert counts.documents == int(built) == int(checked)
    steps = tomllib.loads((EXAMPLES / "recipe.toml").read_text())["steps"]
    assert {dropped.step for dropped in counts.dropped} == set(range(len(steps)))
    similar = re.findall(r"has a similarity of ([\d.]+)", printed)
    assert min(map(float, similar)) >= 0.8


# In place of Slurm's: it runs each task of a job at once, one after another.
SBATCH = """#!/bin/bash
while [[ $1 == --* ]]; do
    [[ $1 == --array=1-* ]] && export SLURM_ARRAY_TASK_COUNT=${1#--array=1-} SLURM_ARRAY_TASK_MIN=1
    [[ $1 == --time=* || $1 == --partition=* ]] && echo "$1" >> given
    shift
done
for task in $(seq "${SLURM_ARRAY_TASK_COUNT:-1}"); do
    SLURM_ARRAY_TASK_ID=$task bash "$@" >> log 2>&1
done
echo 1
"""


@pytest.mark.curation
def test_a_build_that_compares_documents_is_submitted_to_slurm_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SHARES", "2")
    monkeypatch.setenv("ENVIRONMENT", str(Path(sys.executable).parent.parent))
    flags = [f"--input={SAMPLE}", "--dedup=minhash", "--shard_tokens=200k", "--workers=1"]
    command = [EXAMPLES / "slurm/submit.sh", *flags, "--output=out"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "given").read_text() == "--partition=cpu\n--time=24:00:00\n" * 5
    log = (tmp_path / "log").read_text()
    assert log.count("share 1/2 ends") == 4
    assert "all shards are written" in log
    plain = fineshards.build(
        input=SAMPLE, output=tmp_path / "plain", dedup="minhash", shard_tokens="200k"
    )
    assert manifest_of(tmp_path / "out").content_fingerprint == plain.content_fingerprint


@pytest.mark.curation
def test_the_classifier_gives_each_document_its_verdict(tmp_path: Path) -> None:
    printed = run("classify.py", tmp_path)
    folder = tmp_path / "classified"
    table = pq.read_table(SAMPLE)
    classifier = runpy.run_path(str(EXAMPLES / "classify.py"))
    with np.load(folder / "model.npz") as model:
        vectors, weights, bias = model["vectors"].astype(int), model["weights"], model["bias"]
    dropped = set()
    for row, text in enumerate(table["text"].to_pylist()):
        words = ["", *re.findall(r"\w+", text.lower())]
        places = [zlib.crc32(word.encode()) % classifier["HASHES"] for word in words]
        if sum(int(vectors[place] @ weights) for place in places) <= len(words) * int(bias):
            dropped.add(row)
    decisions = read_decisions(open_storage(str(folder / "dataset")), 0).table
    assert set(decisions["row"].to_pylist()) == dropped
    assert printed.endswith(f"{len(table) - len(dropped)} of {len(table)} documents are English\n")
    unseen = [row for row in range(len(table)) if row % 2]
    english = {row for row, name in enumerate(table["language"].to_pylist()) if name == "en"}
    assert sum((row in english) != (row in dropped) for row in unseen) > 0.85 * len(unseen)


@pytest.mark.curation
def test_a_recipe_for_languages_has_the_thresholds_of_their_files(tmp_path: Path) -> None:
    configs: dict[str, dict[str, Any]] = {
        f"{language}_Latn": {
            "dup_line_frac": 0.3 + number / 10,
            "dup_n_grams": [[5, 0.2 + number / 10], [6, 0.15]],
            "language_score": 0.7 + number / 10,
            "line_punct_thr": number / 10,
            "max_avg_word_length": 9 + number,
            "max_non_alpha_words_ratio": 0.8,
            "min_avg_word_length": number,
            "new_line_ratio": 0.2,
            "stopwords": ["für", "\U0001f600", language],
            "top_n_grams": [[2, 0.2]],
        }
        for number, language in enumerate(("deu", "nld"))
    }
    for label, config in configs.items():
        (tmp_path / f"{label}.yml").write_text(yaml.safe_dump(config))
    recipe = run("fineweb2_recipe.py", tmp_path, ".", "deu_Latn=de", "nld_Latn=nl")
    steps: dict[str, Any] = {each.use: each.step for each in parse_recipe(recipe, "it").steps}
    assert len(steps) == 8
    for label, config in configs.items():
        where, repetition, fineweb, quality = (
            steps[use].steps[label]
            for use in ("where", "gopher_repetition", "fineweb_quality", "gopher_quality")
        )
        assert where.sql == f"language_score >= {config['language_score']}"
        assert steps["where"].others.sql == "false"
        assert repetition.dup_line_frac == config["dup_line_frac"]
        assert repetition.dup_para_frac is None
        for name in ("dup_n_grams", "top_n_grams"):
            assert [list(pair) for pair in getattr(repetition, name)] == config[name]
        for name in ("line_punct_thr", "new_line_ratio"):
            assert getattr(fineweb, name) == config[name]
        for name in ("max_avg_word_length", "max_non_alpha_words_ratio", "min_avg_word_length"):
            assert getattr(quality, name) == config[name]
        assert list(quality.stop_words) == config["stopwords"]
        words = {"deu_Latn": "de", "nld_Latn": "nl"}[label]
        assert {repetition.language, fineweb.language, quality.language} == {words}
