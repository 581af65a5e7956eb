"""Footers of files far away are read side by side."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.growing import made_up_rows, write_rows

from benchmarks.far_server import far_server
from fineshards.config import BuildConfig
from fineshards.pipeline.launch import prepare
from fineshards.worker.tasks import Worker, discover_files, side_by_side
from fineshards.worker.work import Work

pytestmark = pytest.mark.cloud


def test_footers_of_far_files_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "served/data"
    source.mkdir(parents=True)
    for number in range(20):
        write_rows(source / f"{number:02d}.parquet", made_up_rows(number, 5))
    config = BuildConfig(input=source, output=tmp_path / "out", test_shards=0)
    launch = prepare(config)
    near = launch.job.files
    far = [
        replace(
            file,
            root="gs://data/",
            name=Path(file.path).name,
            identity=f"generation:{os.stat(file.path).st_mtime_ns}",
        )
        for file in near
    ]
    assert [len(part) for part in side_by_side(near)] == [1] * 20
    assert [len(part) for part in side_by_side(far)] == [16, 4]
    with far_server(tmp_path / "served", 0) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        worker = Worker(Work.of(launch.checkpoints, launch.job, config))
        server.hold(16)
        found = discover_files(*far[:16]).run(worker)
    assert [file for file, _ in found] == far[:16]
    again = discover_files(*near[:16]).run(worker)
    assert [blocks for _, blocks in again] == [blocks for _, blocks in found]
