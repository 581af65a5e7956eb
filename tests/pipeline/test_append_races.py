"""Two appends to one dataset at the same time, in two processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.growing import (
    append,
    build,
    content_of,
    made_up_rows,
    published_files,
    unfinished_append,
    write_parts,
    write_rows,
)
from support.waiting_command import wait_for

import fineshards
from fineshards.cli.cli import main
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing

FLAGS = ["--shard_tokens=500", "--test_fraction=0.3", "--block_bytes=1"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three files."""
    return write_parts(tmp_path_factory.mktemp("parts"), made_up_rows(8, 150), 50)


def at_once(folder: Path, first: Path, second: Path) -> list[tuple[int, str]]:
    """Starts two appends together; returns their exit codes and their last lines on stderr."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "fineshards", "append", str(folder), "--input", str(file)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for file in (first, second)
    ]
    lines = [process.communicate()[1].splitlines() for process in running]
    return [(process.returncode, said[-1]) for process, said in zip(running, lines, strict=True)]


def test_the_same_append_twice_at_once(parts: list[Path], tmp_path: Path) -> None:
    build(tmp_path / "at-once", *parts[:2], *FLAGS)
    build(tmp_path / "out", parts[0], *FLAGS)
    ends = at_once(tmp_path / "out", parts[1], parts[1])
    assert [code for code, _ in ends] == [0, 0], ends
    assert content_of(tmp_path / "out") == content_of(tmp_path / "at-once")
    assert not (tmp_path / "out/checkpoints").exists()


def test_of_two_different_appends_at_once_one_wins(parts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    build(folder, parts[0], *FLAGS)
    ends = at_once(folder, parts[1], parts[2])
    manifest = Manifest.load_finished(open_storage(str(folder)))
    # If one ended before the other began, both won.
    assert sum(code == 0 for code, _ in ends) == manifest.generation - 1
    assert manifest.generation > 1, ends
    for code, line in ends:
        if code:
            assert line.startswith(f"fineshards: another append to {folder} ") or (
                line.startswith(f"fineshards: {folder} ") and "so this" in line
            ), line
    build(tmp_path / "at-once", *(file.path for file in manifest.files), *FLAGS)
    assert content_of(folder) == content_of(tmp_path / "at-once")
    assert fineshards.verify(folder).problems == []


def waiting(where: str, name: str, folder: Path, *command: object) -> subprocess.Popen[str]:
    """A command that waits at a file operation: see support/waiting_command.py."""
    given = [where, name, folder, *command]
    return subprocess.Popen(
        [sys.executable, "-m", "support.waiting_command", *map(str, given)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("command", ["append", "build"])
def test_an_overwrite_beside_an_append_that_is_writing_shards(
    parts: list[Path], tmp_path: Path, command: str
) -> None:
    """The append finishes its last shard just before the checkpoints are deleted."""
    folder, flags = tmp_path / "out", tmp_path / "flags"
    flags.mkdir()
    build(folder, parts[0], *FLAGS)
    small = write_rows(parts[0].parent / "small.parquet", made_up_rows(9, 3))
    both, expected = shutil.copytree(folder, tmp_path / "both"), tmp_path / "expected"
    append(both, parts[1])
    if command == "append":
        append(shutil.copytree(folder, expected), small)
    else:
        build(expected, small, *FLAGS)
    last = max(path.name for path in (both / "train").iterdir())
    assert last > max(path.name for path in (expected / "train").iterdir())

    running = waiting("replace", f"/{last}", flags, "append", folder, "--input", parts[1])
    wait_for(flags / f"{last}.reached")
    given = ["append", folder] if command == "append" else ["build", "--output", folder, *FLAGS]
    given += ["--input", small, "--overwrite"]
    overwriting = waiting("rmtree", "/out/checkpoints", flags, *given)
    wait_for(flags / "checkpoints.reached")
    (flags / f"{last}.go").touch()
    wait_for(flags / f"{last}.done")
    for step in ("go", "over"):
        (flags / f"checkpoints.{step}").touch()
    said = overwriting.communicate()[1]
    assert overwriting.returncode == 0, said
    (flags / f"{last}.over").touch()
    told = running.communicate()[1]
    assert running.returncode in (1, 2), told
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith(f"fineshards: {folder}"), told
    assert published_files(folder) == published_files(expected)
    # A worker that comes this late leaves the record of its shard, which the next command deletes.
    assert main([*map(str, given[:-1])]) == 0
    assert fineshards.verify(folder).problems == []


def test_a_late_shard_of_a_replaced_job_is_not_left_in_a_dataset(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, late = tmp_path / "out", tmp_path / "out/train/train_9999.npy"
    build(folder, parts[0], *FLAGS)
    unfinished_append(folder, parts[1])
    late.write_bytes(b"late")
    assert main(["append", str(folder), "--input", str(parts[1])]) == 1
    assert f"{late} is not of this job: one that it replaced was" in capsys.readouterr().err
    assert Manifest.load_finished(open_storage(str(folder))).generation == 1
    late.unlink()
    append(folder, parts[1])
    assert fineshards.verify(folder).problems == []
