"""Files of earlier versions are still read: datasets, interrupted jobs and loader states.

The first version, whose code was in six packages, wrote `fixtures/version-0.1.0`: a finished
dataset, the same job interrupted, and loader states (tests/test_batch_loader.py).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from conftest import ROOT
from support.oracle import shards_in

import fineshards
from fineshards.shards.job import Job
from fineshards.shards.manifest import Manifest
from fineshards.storage.base import open_storage

EARLIER = ROOT / "tests/fixtures/version-0.1.0"


def test_a_finished_dataset_is_read_verified_and_described() -> None:
    folder = EARLIER / "finished"
    storage = open_storage(str(folder))
    job, manifest = Job.load(storage), Manifest.load(storage)
    assert job is not None
    assert manifest is not None
    stored = json.loads((folder / "metadata/job.json").read_text())
    # The same settings and files still have the same fingerprint.
    assert job.fingerprint() == stored["fingerprint"] == manifest.fingerprint
    assert json.loads(json.dumps(manifest.to_json())) == json.loads(
        (folder / "metadata/manifest.json").read_text()
    )
    verdict = fineshards.verify(folder)
    assert (verdict.problems, verdict.documents, verdict.tokens) == ([], 30, 18_502)
    assert fineshards.status(folder).stage == "finished"
    assert len(fineshards.TokenDataset(folder, sequence_length=64)) == 257


def move_input(output: Path, folder: Path) -> None:
    """Copies the input of a job to a folder, and changes the job record to match.

    Paths and times are part of the fingerprint, and the checkpoint folder is named after it.
    """
    storage = open_storage(str(output))
    record = json.loads((output / "metadata/job.json").read_text())
    for file in record["files"]:
        path = shutil.copy(EARLIER / Path(file["path"]).name, folder)
        file["path"] = str(path)
        file["identity"] = f"mtime:{os.stat(path).st_mtime_ns}"
    (output / "metadata/job.json").write_text(json.dumps(record))
    job = Job.load(storage)
    assert job is not None
    (checkpoints,) = (
        path for path in (output / "checkpoints").iterdir() if path.name == record["fingerprint"]
    )
    checkpoints.rename(checkpoints.with_name(job.fingerprint()))


def times(output: Path) -> dict[str, int]:
    """The modification times of all token blocks and shards."""
    files = [*output.glob("checkpoints/*/blocks/*.tokens"), *output.glob("t*/*.npy")]
    return {path.name: path.stat().st_mtime_ns for path in files}


def test_an_interrupted_job_resumes_with_its_finished_blocks(tmp_path: Path) -> None:
    output, source = tmp_path / "out", tmp_path / "in"
    shutil.copytree(EARLIER / "interrupted", output)
    source.mkdir()
    move_input(output, source)
    before = times(output)
    manifest = fineshards.build(
        input=source / "input-*.parquet",
        output=output,
        tokenizer=EARLIER / "tokenizer.json",
        shard_tokens=2000,
        test_shards=1,
        block_bytes=1,
        max_bad_rows=3,
        keep_checkpoints=True,
    )
    assert shards_in(output) == shards_in(EARLIER / "finished")
    # One block lacked its mark of completion; no other block changed. Shards are assembled again,
    # because the earlier version did not record the checksums of their tables.
    now = times(output)
    blocks = {name for name in now if name.endswith(".tokens")}
    assert {name for name in blocks if now[name] != before[name]} == {"00000-00001.tokens"}
    assert manifest.totals()["documents"] == 30
    assert fineshards.verify(output).problems == []
