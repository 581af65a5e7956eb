"""Shards written while blocks are tokenized: the same bytes, whatever happens meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.growing import append, build, made_up_rows, write_rows
from support.killed_by_hand import crashes_of

FLAGS = ["--shard_tokens=400", "--block_bytes=1", "--workers=2"]
RECIPE = """
[[steps]]
use = "length"
min_chars = 2

[[steps]]
use = "exact_duplicates"
"""


def prepare(folder: Path, kind: str) -> tuple[list[str], int]:
    """Makes `before` and `after` in a folder; the command between them, and its documents.

    `after` is made without worker processes, so that its shards are written last.
    """
    parts = made_up_rows(5, 22), made_up_rows(6, 22)
    files = [write_rows(folder / f"in/{number}.parquet", part) for number, part in enumerate(parts)]
    flags = [*FLAGS, "--test_shards=2" if kind == "test_shards" else "--test_fraction=0.3"]
    if kind == "recipe":
        (folder / "recipe.toml").write_text(RECIPE)
        flags += [f"--recipe={folder}/recipe.toml"]
    documents = sum(row["text"] is not None for part in parts for row in part)
    if kind != "append":
        (folder / "before").mkdir()
        build(folder / "after", *files, *flags)
        return ["build", "--input", *map(str, files), "--output=FOLDER", *flags], documents
    build(folder / "before", files[0], *flags)
    shutil.copytree(folder / "before", folder / "after")
    append(folder / "after", files[1])
    return ["append", "FOLDER", "--input", str(files[1]), "--workers=2"], 0


@pytest.mark.kills
@pytest.mark.parametrize("kind", ["test_fraction", "test_shards", "append", "recipe"])
@pytest.mark.parametrize("part", range(2))
def test_a_command_killed_with_its_workers_before_any_file_operation(
    tmp_path: Path, kind: str, part: int
) -> None:
    command, documents = prepare(tmp_path, kind)
    crashes = crashes_of("early_crash_driver", tmp_path, part, 6, *command)
    assert any(crash["blocks_dropped"] for crash in crashes)
    for crash in crashes:
        assert crash["status"] == 0, crash
        assert crash["same"], crash
        assert crash["problems"] == [], crash
        if kind != "append":  # whose last shards grow
            assert crash["shards_rewritten"] == [], crash
            assert crash["changed_after_crash"] == [], crash
        if kind in ("test_fraction", "test_shards"):
            finished = crash["documents_finished"]
            assert crash["documents_encoded"] == documents - finished, crash
        assert not crash["left"], crash
