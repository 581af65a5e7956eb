"""Files of earlier versions are still read: datasets and loader states.

The first version, whose code was in six packages, wrote `fixtures/version-0.1.0`: a finished
dataset, the same job interrupted, and loader states (tests/loader/test_loader_state.py).
Version 2 of the format wrote `fixtures/version-2` from the same input (`--shard_tokens 2000
--test_fraction 0.2 --max_bad_rows 3`), with the split by document.
Version 3, before manifests had a content fingerprint, wrote `fixtures/version-3`: a build of the
first file, an append of the second one, loader states, and then a redaction.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT
from support.damage import edit_table
from support.oracle import shards_in

import fineshards
from fineshards import BatchLoader, Mixture, Packing, TokenDataset
from fineshards.cli.build_command import build
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.errors import OutputError, UsageError
from fineshards.maintenance.redact import redact
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

EARLIER = ROOT / "tests/fixtures/version-0.1.0"


VERSION_2 = ROOT / "tests/fixtures/version-2/finished"
VERSION_3 = ROOT / "tests/fixtures/version-3"


@pytest.mark.parametrize(
    ("folder", "version", "samples"),
    [(EARLIER / "finished", 1, 257), (VERSION_2, 2, 245), (VERSION_3 / "finished", 3, 245)],
)
def test_a_finished_dataset_is_read_verified_and_described(
    folder: Path, version: int, samples: int
) -> None:
    storage = open_storage(str(folder))
    job, manifest = Job.load(storage), Manifest.load(storage)
    assert job is not None
    assert manifest is not None
    assert job.format_version == manifest.version == version
    stored = json.loads((folder / "metadata/job.json").read_text())
    # The same settings and files still have the same fingerprint.
    assert job.fingerprint() == stored["fingerprint"]
    assert manifest.job.fingerprint() == manifest.fingerprint
    assert job.generation < manifest.generation or job.fingerprint() == manifest.fingerprint
    # Recorded by none of them, and computed from what all of them recorded.
    assert manifest.recorded_content is None
    assert len(manifest.content_fingerprint) == 64
    assert json.loads(manifest.to_bytes()) == json.loads(
        (folder / "metadata/manifest.json").read_text()
    )
    verdict = fineshards.verify(folder)
    assert (verdict.problems, verdict.documents, verdict.tokens) == ([], 30, 18_502)
    assert fineshards.status(folder).stage == "finished"
    assert len(fineshards.TokenDataset(folder, sequence_length=64)) == samples


def test_documents_of_version_2_are_numbered_in_the_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later versions number them in their stream."""
    numbers = []
    for split in ("test", "train"):
        for path in sorted((VERSION_2 / "metadata/documents").glob(f"{split}_*.parquet")):
            numbers.append(pq.read_table(path)["document"].to_pylist())
    assert sorted({number for own in numbers for number in own}) == list(range(30))
    assert numbers[0][0] == 0
    first_of_train = numbers[2][0]
    assert first_of_train == 6
    opened = Dataset.open(open_storage(str(VERSION_2)))
    document = opened.document(first_of_train)
    assert (document.number, document.offset) == (6, 0)
    assert document.shard.name == "train/train_0000.npy"
    assert [opened.document(number).number for number in range(30)] == list(range(30))
    assert main(["find", str(VERSION_2), "--token=2770", "--json"]) == 0
    match = json.loads(capsys.readouterr().out)["match"]
    assert (match["number"], match["file"], match["row"]) == (6, document.file, document.row)
    assert main(["inspect", str(VERSION_2), "--shard=train/0", "--document=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 6
    # verify knows which numbers they should have.
    output = Path(shutil.copytree(VERSION_2, tmp_path / "out"))
    edit_table(
        output,
        "train/train_0000.npy",
        lambda rows: rows.update(document=[number - 6 for number in rows["document"]]),
    )
    problems = fineshards.verify(output).problems
    assert any("train_0000.parquet begins with document 0" in problem for problem in problems)


def of_version_3(folder: Path, order: str) -> BatchLoader:
    """The loader that saved a state of version 3."""
    generations = {"first": {"generation": 1}, "added": {"after_generation": 1}}
    options = generations.get(order, {})
    train = TokenDataset(folder, "train", sequence_length=64, **options)
    if order == "mixture":
        test = TokenDataset(folder, "test", sequence_length=64)
        return BatchLoader(Mixture({"train": (train, 0.75), "test": (test, 0.25)}, seed=3), 8, 7)
    packing = Packing(rows=16) if order == "packed" else None
    shards = 2 if order == "windowed" else None
    return BatchLoader(train, 8, 7, packing=packing, shuffle_shards=shards)


@pytest.mark.parametrize("order", ["first", "shuffled", "windowed", "packed", "mixture", "added"])
@pytest.mark.parametrize("again", [False, True])
def test_a_state_that_knew_the_job_and_not_the_shards_resumes(
    tmp_path: Path, order: str, again: bool
) -> None:
    """Saved before the dataset was redacted. again: it was redacted once more since."""
    folder = VERSION_3 / "finished"
    if again:
        folder = Path(shutil.copytree(folder, tmp_path / "out"))
        redact(str(folder), documents=[5, 9])
    recorded = json.loads((VERSION_3 / "states.json").read_text())[order]
    with of_version_3(folder, order) as loader:
        loader.load_state_dict(recorded["state"])
        assert loader.step == 3
        batch = next(loader)
        state = loader.state_dict()
        assert state["fingerprint"] != recorded["state"]["fingerprint"]
    if not again and "next_batch_sha256" in recorded:
        content = np.asarray(batch).astype("<u4").tobytes()
        assert hashlib.sha256(content).hexdigest() == recorded["next_batch_sha256"]
    # What it saves now is also what its neighbour saves.
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    with of_version_3(copy, order) as loader:
        loader.load_state_dict(state)
        assert loader.step == 4


@pytest.mark.long
def test_a_dataset_without_a_content_fingerprint_grows_and_gets_one(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(VERSION_3 / "finished", tmp_path / "out"))
    before = Manifest.load_finished(open_storage(str(folder)))
    record = TokenDataset(folder, sequence_length=64).fingerprint
    assert redact(str(folder), documents=[5, 9]).generation == 4
    redacted = Manifest.load_finished(open_storage(str(folder)))
    assert redacted.recorded_content == redacted.content_fingerprint != before.content_fingerprint
    assert TokenDataset(folder, sequence_length=64).fingerprint == record
    shutil.copy(EARLIER / "input-1.parquet", tmp_path / "more.parquet")
    grown = fineshards.append(folder, input=tmp_path / "more.parquet", max_bad_rows=3)
    assert grown.recorded_content == grown.content_fingerprint
    assert fineshards.verify(folder).problems == []
    # Each manifest that was kept is the one that was there.
    kept = [
        json.loads(path.read_bytes())
        for path in sorted((folder / "metadata/generations").glob("000?.json"))
    ]
    assert [each.get("content_fingerprint") for each in kept] == [
        *(None, None, None),
        redacted.content_fingerprint,
        grown.content_fingerprint,
    ]


def built_again(tmp_path: Path, state: str, **options: object) -> tuple[Path, BuildConfig]:
    """A copy of a dataset of version 0.1.0 with its input, and the command that made it.

    Paths and times are part of the fingerprint, and the checkpoint folder is named after it. So
    the records are changed to those of the copied input.
    """
    output = Path(shutil.copytree(EARLIER / state, tmp_path / "out"))
    record = json.loads((output / "metadata/job.json").read_text())
    old = record["fingerprint"]
    for file in record["files"]:
        path = shutil.copy(EARLIER / Path(file["path"]).name, tmp_path)
        file["path"] = str(path)
        file["identity"] = f"mtime:{os.stat(path).st_mtime_ns}"
    (output / "metadata/job.json").write_text(json.dumps(record))
    job = Job.load(open_storage(str(output)))
    assert job is not None
    if (output / "checkpoints" / old).exists():
        (output / "checkpoints" / old).rename(output / "checkpoints" / job.fingerprint())
    command: dict[str, Any] = {
        "input": tmp_path / "input-*.parquet",
        "output": output,
        "tokenizer": EARLIER / "tokenizer.json",
        "shard_tokens": 2000,
        "test_shards": 1,
        "block_bytes": 1,
        "max_bad_rows": 3,
    }
    return output, BuildConfig(**(command | options))


def test_the_command_of_a_finished_dataset_finds_it_finished(tmp_path: Path) -> None:
    output, config = built_again(tmp_path, "finished")
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    first, *_ = build(config).lines
    assert first.startswith("already finished, nothing to do: 30 documents")
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_another_rule_for_the_split_is_another_job(tmp_path: Path) -> None:
    _, config = built_again(tmp_path, "finished", test_shards=None, test_fraction=0.1)
    with pytest.raises(UsageError, match=r"holds another job: .*--split_key: was None"):
        build(config)


def test_an_interrupted_job_is_refused_and_built_again_with_the_same_shards(tmp_path: Path) -> None:
    output, config = built_again(tmp_path, "interrupted")
    message = r"unfinished job of an earlier version of fineshards \(format version 1, now 3\)"
    with pytest.raises(UsageError, match=message):
        build(config)
    with pytest.raises(OutputError, match=message):
        fineshards.status(output)
    build(replace(config, overwrite=True))
    # A number of test shards means what it always meant.
    assert shards_in(output) == shards_in(EARLIER / "finished")
    assert fineshards.verify(output, sample=100).ok
