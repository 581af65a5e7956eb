"""Appends killed at any moment: readers see a whole generation, and the same command resumes."""

import shutil
from pathlib import Path

import pytest
from support.growing import append, build, content_of, made_up_rows, write_rows
from support.kills import check_appends, crashes_of

pytestmark = pytest.mark.kills

FLAGS = ["--shard_tokens=500", "--test_fraction=0.3", "--block_bytes=1"]


def prepare(folder: Path, rows: int, *flags: str) -> list[str]:
    """Makes `before`, and `after` by an append; returns the arguments of that append."""
    parts = made_up_rows(5, rows), made_up_rows(6, rows)
    files = [write_rows(folder / f"in/{number}.parquet", part) for number, part in enumerate(parts)]
    build(folder / "before", files[0], *FLAGS, *flags)
    shutil.copytree(folder / "before", folder / "after")
    append(folder / "after", files[1])
    if not flags:
        build(folder / "at-once", *files, *FLAGS)
        assert content_of(folder / "after") == content_of(folder / "at-once")
    files[0].unlink()
    return ["--input", str(files[1])]


@pytest.mark.parametrize("flags", [[], ["--shuffle_seed=3"]])
@pytest.mark.parametrize("part", range(2))
def test_an_append_killed_before_any_file_operation(
    tmp_path: Path, part: int, flags: list[str]
) -> None:
    given = prepare(tmp_path, 14, *flags)
    # Every third operation, with a shuffle two of nine: all of them take ten minutes.
    step = 9 if flags else 6
    crashes = crashes_of(tmp_path, ["append", "OUT", *given], part, step)
    assert len(crashes) > (5 if flags else 6)
    check_appends(tmp_path, crashes)
