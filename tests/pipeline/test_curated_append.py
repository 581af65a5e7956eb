"""Datasets that were deduplicated, and grow: build A, append B, append C is build A B C."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import growing
from support.checkout import ROOT
from support.curated import (
    Row,
    Steps,
    curate,
    decisions_in,
    made_up_files,
    write_files,
    write_recipe,
)
from support.damage import flip_middle
from support.growing import append, unfinished_append
from support.oracle import files_in, shards_in, streams_of

import fineshards
from fineshards.cli.cli import main

pytestmark = pytest.mark.curation

ROWS = made_up_files(8, (75,))[0]
STEPS: Steps = [
    ("length", {"min_chars": 6}),
    ("exact", {}),
    ("symbol_lines", {}),
    ("lines", {"min_doc_words": 3}),
    ("minhash", {"n_grams": 3, "verify": "none"}),
    ("sample", {"rate": 0.95}),
]
FLAGS = ["--shard_tokens=400", "--test_fraction=0.2", "--block_bytes=1"]


def build(output: Path, files: Sequence[Path], recipe: Path, *flags: str) -> None:
    inputs = [f"--input={file}" for file in files]
    assert main(["build", f"--output={output}", *inputs, f"--recipe={recipe}", *flags]) == 0


RECORDS = tuple(
    f"metadata/{name}" for name in ("manifest.json", "job.json", "blocks.parquet", "generations/")
)
SHARDS = ("test/", "train/", "metadata/documents/")


def files_of(folder: Path, but: tuple[str, ...] = RECORDS) -> dict[str, bytes]:
    """All files of a dataset but the records, which say how it has grown."""
    files = files_in(folder)
    return {name: files[name] for name in files if not name.startswith(but)}


def content_of(folder: Path) -> dict[str, Any]:
    """What does not say how a dataset has grown, nor where its shards are cut."""
    return files_of(folder, RECORDS + SHARDS) | growing.content_of(folder)


@pytest.mark.parametrize(
    ("seed", "steps", "more"),
    [
        (0, STEPS, ["--memory_bytes=2000"]),
        (1, [("exact", {"by": "normalized"})], []),
        (2, [("paragraphs", {"min_doc_words": 3}), ("exact", {})], []),
        (2, [("passages", {"min_words": 5, "min_doc_words": 3}), ("exact", {})], []),
        (3, [("exact", {"within": "column:dump"}), ("minhash", {"within": "file"})], []),
        (
            4,
            [
                ("score", {"name": "length", "by": "characters"}),
                ("exact", {}),
                ("where", {"sql": "length > 100"}),
                ("score", {"name": "left", "by": "words"}),
            ],
            [],
        ),
    ],
)
def test_a_corpus_in_three_parts_is_the_corpus_at_once(
    tmp_path: Path, seed: int, steps: Steps, more: list[str]
) -> None:
    draw = random.Random(seed)
    first, second = sorted(draw.sample(range(5, 70), 2))
    parts: list[list[Row]] = [ROWS[:first], ROWS[first:second], ROWS[second:]]
    files = write_files(tmp_path / "in", parts)
    recipe = write_recipe(tmp_path / "recipe.toml", steps)
    build(tmp_path / "at-once", files, recipe, *FLAGS, "--keep_keys")
    grown = tmp_path / "grown"
    build(grown, files[:1], recipe, *FLAGS, "--keep_keys", *more)
    first_decisions = (grown / "metadata/decisions/00000.parquet").read_bytes()
    files[0].unlink()
    append(grown, files[1], *more)
    append(grown, files[2])
    assert content_of(grown) == content_of(tmp_path / "at-once")
    expected = curate(parts, steps)
    assert decisions_in(grown, 3) == expected.decisions
    assert streams_of(shards_in(grown)) == streams_of(expected.shards(400, "0.2"))
    assert (grown / "metadata/decisions/00000.parquet").read_bytes() == first_decisions
    for generation in (1, 2, 3):
        assert fineshards.verify(grown, generation=generation).problems == []


@pytest.mark.parametrize("verify", ["jaccard", "containment"])
def test_new_documents_are_compared_with_the_texts_of_earlier_ones(
    tmp_path: Path, verify: str, capsys: pytest.CaptureFixture[str]
) -> None:
    likely = {"n_grams": 2, "buckets": 30, "hashes_per_bucket": 1, "threshold": 0.6}
    steps: Steps = [("lines", {"min_doc_words": 3}), ("minhash", likely | {"verify": verify})]
    parts: list[list[Row]] = [ROWS[:30], ROWS[30:50], ROWS[50:]]
    files = write_files(tmp_path / "in", parts)
    recipe = write_recipe(tmp_path / "recipe.toml", steps)
    build(tmp_path / "at-once", files, recipe, *FLAGS, "--keep_keys")
    grown = tmp_path / "grown"
    build(grown, files[:1], recipe, *FLAGS, "--keep_keys")
    append(grown, files[1])
    append(grown, files[2])
    assert content_of(grown) == content_of(tmp_path / "at-once")
    found, expected = decisions_in(grown, 3), curate(parts, steps)
    assert found == expected.decisions
    assert streams_of(shards_in(grown)) == streams_of(expected.shards(400, "0.2"))
    assert fineshards.verify(grown, sample=100).problems == []
    assert any(each[6] is not None and each[4] == 0 for each in found[1])


def test_new_documents_cannot_be_compared_with_a_text_that_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_files(tmp_path / "in", [ROWS[:30], ROWS[:30]])
    recipe = write_recipe(tmp_path / "recipe.toml", [("minhash", {})])
    build(tmp_path / "out", files[:1], recipe, *FLAGS, "--keep_keys")
    gone = files[0].rename(tmp_path / "gone")
    capsys.readouterr()
    assert main(["append", f"{tmp_path}/out", f"--input={files[1]}"]) == 1
    assert str(files[0]) in (said := capsys.readouterr().err)
    assert "Traceback" not in said
    gone.rename(files[0])
    append(tmp_path / "out", files[1])
    assert fineshards.verify(tmp_path / "out", sample=100).problems == []


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three files, a recipe, and a dataset of the first file. Read-only."""
    folder = tmp_path_factory.mktemp("curated-append")
    files = write_files(folder / "in", [ROWS[:30], ROWS[30:50], ROWS[50:]])
    recipe = write_recipe(folder / "recipe.toml", [("exact", {}), ("lines", {"min_doc_words": 3})])
    build(folder / "finished", files[:1], recipe, *FLAGS, "--keep_keys")
    shutil.copytree(folder / "finished", folder / "grown")
    append(folder / "grown", files[1])
    return folder


def copy_of(grown: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grown / "finished", tmp_path / "dataset"))


def test_an_append_that_overwrites_another_leaves_nothing_of_it(
    grown: Path, tmp_path: Path
) -> None:
    """Not even decisions about rows of a file of the same number, or of one more."""
    dataset = copy_of(grown, tmp_path)
    (tmp_path / "two").mkdir()
    for name in ("1.jsonl", "2.jsonl.gz"):
        shutil.copy(grown / "in" / name, tmp_path / "two")
    unfinished_append(dataset, tmp_path / "two")
    assert (dataset / "metadata/decisions/00002.parquet").exists()
    append(dataset, grown / "in/1.jsonl", "--overwrite")
    assert files_of(dataset) == files_of(grown / "grown")
    assert fineshards.verify(dataset, sample=100).problems == []


def test_a_dataset_without_its_keys_does_not_grow(
    grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [grown / "in/0.parquet"]
    for number, (steps, flags, words) in enumerate(
        [
            ([("exact", {})], [], "was deduplicated without --keep_keys"),
            (
                [("minhash", {"rule": "components"})],
                ["--keep_keys"],
                "step 1 minhash of .* drops whole components",
            ),
        ]
    ):
        output = tmp_path / str(number)
        build(output, files, write_recipe(tmp_path / "r.toml", steps), *FLAGS, *flags)
        before = files_in(output)
        capsys.readouterr()
        assert main(["append", str(output), f"--input={grown}/in/1.jsonl"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(words, line), line
        assert files_in(output) == before


@pytest.mark.parametrize("damage", [flip_middle, Path.unlink, lambda path: os.truncate(path, 40)])
def test_damaged_keys_are_a_sentence_and_not_other_duplicates(
    grown: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], object],
) -> None:
    dataset = copy_of(grown, tmp_path)
    keys = dataset / "metadata/keys/00000-00000.keys"
    whole = keys.read_bytes()
    damage(keys)
    assert main(["append", str(dataset), f"--input={grown}/in/1.jsonl"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("fineshards: ")
    assert str(keys) in line
    assert json.loads((dataset / "metadata/manifest.json").read_text())["generations"][1:] == []
    # Copied back, the same command finishes.
    keys.write_bytes(whole)
    append(dataset, grown / "in/1.jsonl")
    assert files_of(dataset) == files_of(grown / "grown")


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "metadata/decisions/00001.parquet",
        "metadata/generations/0001.json",
        "metadata/generations/0002.json",
        "metadata/generations/0002.job.json",
        "metadata/job.json",
        "metadata/keys/00001-00000.keys",
        "metadata/statistics/00001.parquet",
    ],
)
def test_an_append_does_not_build_on_damaged_files(
    grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, resumed: bool
) -> None:
    dataset = tmp_path / "dataset"
    shutil.copytree(grown / "grown", dataset)
    new = grown / "in/2.jsonl.gz"
    if resumed:
        unfinished_append(dataset, new)
    whole = (dataset / name).read_bytes()
    flip_middle(dataset / name)
    before = files_in(dataset)
    assert main(["append", str(dataset), f"--input={new}"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"{dataset / name} is not what the manifest says, so nothing is added" in line
    assert files_in(dataset) == before
    (dataset / name).write_bytes(whole)
    append(dataset, new)
    assert fineshards.verify(dataset).problems == []


def test_a_dataset_grows_after_a_redaction(grown: Path, tmp_path: Path) -> None:
    dataset = copy_of(grown, tmp_path)
    listed = tmp_path / "ids"
    listed.write_text("0-0\n0-1\n0-2\n0-3\n")
    assert main(["redact", str(dataset), f"--ids={listed}"]) == 0
    assert fineshards.verify(dataset, sample=100).problems == []
    append(dataset, grown / "in/1.jsonl")
    assert fineshards.verify(dataset, sample=100).problems == []
    for name, content in files_of(grown / "grown").items():
        if name.startswith(("metadata/decisions", "metadata/keys")):
            assert (dataset / name).read_bytes() == content


@pytest.mark.kills
def test_an_append_killed_at_random_times(grown: Path, tmp_path: Path) -> None:
    dataset = copy_of(grown, tmp_path)
    draw, kills, wait = random.Random(4), 0, 3.0
    command = [sys.executable, "-m", "fineshards", "append", str(dataset)]
    command += ["--input", str(grown / "in/1.jsonl")]
    while True:
        process = subprocess.Popen(
            command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL
        )
        try:
            assert process.wait(wait * draw.random()) == 0
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            wait *= 1.3
        manifest = json.loads((dataset / "metadata/manifest.json").read_text())
        generation = len(manifest["generations"])
        assert fineshards.verify(dataset, generation=generation).problems == []
    assert kills
    assert files_of(dataset) == files_of(grown / "grown")
    assert not (dataset / "checkpoints").exists()
