"""A shuffled build killed at any moment resumes; damaged runs and buckets are made again."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.damage import cut, flip_middle, zeroed
from support.kills import crashes_of
from support.oracle import oracle_shuffled, read_texts, shards_in

from fineshards.cli.cli import main

pytestmark = pytest.mark.growing

Damage = Callable[[Path], object]

FLAGS = ["--shard_tokens=10000", "--test_fraction=0.2", "--shuffle_seed=5", "--keep_checkpoints"]
SMALL = ["--memory_bytes=40k", "--block_bytes=1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """80 documents of the sample in two files and eight row groups."""
    folder = tmp_path_factory.mktemp("shuffle-restart") / "in"
    folder.mkdir()
    table = pq.read_table(sample)
    pq.write_table(table.slice(0, 60), folder / "a.parquet", row_group_size=10)
    pq.write_table(table.slice(60, 20), folder / "b.parquet", row_group_size=10)
    return folder


@pytest.fixture(scope="module")
def expected(source: Path) -> dict[str, bytes]:
    texts = [read_texts(path) for path in sorted(source.iterdir())]
    return oracle_shuffled(texts, 5, 10_000, fraction="0.2")


@pytest.fixture(scope="module")
def finished(source: Path) -> Path:
    """A finished build with its checkpoints. Read-only."""
    output = source.parent / "finished"
    assert build(source, output, *SMALL) == 0
    return output


def build(source: Path, output: Path, *flags: str) -> int:
    return main(["build", f"--input={source}", f"--output={output}", *FLAGS, *flags])


def unfinished(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a dataset without its shards and manifest, and its folder of checkpoints."""
    output = Path(shutil.copytree(finished, tmp_path / "out"))
    (output / "metadata/manifest.json").unlink()
    for name in ("test", "train", "metadata/documents"):
        shutil.rmtree(output / name)
    (kept,) = (path for path in (output / "checkpoints").iterdir() if len(path.name) == 64)
    shutil.rmtree(kept / "shards")
    return output, kept


def written(folder: Path) -> dict[str, int]:
    """The inodes of all files of token blocks: a file that is written again has another."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_ino
        for kind in ("blocks", "buckets")
        for path in sorted((folder / kind).glob("*"))
    }


def test_a_restart_with_other_buckets_makes_new_ones(
    finished: Path, source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The size of buckets may be changed, such as after one that did not fit into memory."""
    output, kept = unfinished(finished, tmp_path)
    before = written(kept)
    assert build(source, output, "--memory_bytes=70k", "--block_bytes=1") == 0
    assert shards_in(output) == expected
    after = written(kept)
    assert before.items() < after.items()
    assert {name.partition("/")[0] for name in after.keys() - before.keys()} == {"buckets"}


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("blocks/*.tokens", zeroed),
        ("blocks/*.tokens", flip_middle),
        ("blocks/*.documents", cut),
        ("blocks/*.tokens", Path.unlink),
        ("blocks/*.json", Path.unlink),
        ("buckets/*.train.tokens", flip_middle),
        ("buckets/*.test.parquet", zeroed),
        ("buckets/*.train.parquet", cut),
    ],
)
def test_what_a_power_cut_damaged_is_made_again(
    finished: Path,
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    pattern: str,
    damage: Damage,
) -> None:
    """Checkpoints are not flushed to disk, so their names may survive without their contents."""
    output, kept = unfinished(finished, tmp_path)
    # What is made of it is lost, too, or it would not be read.
    if not pattern.startswith("buckets"):
        shutil.rmtree(kept / "buckets")
    before = written(kept)
    victim = sorted(kept.glob(pattern))[1]
    damage(victim)
    assert build(source, output, *SMALL) == 0
    assert shards_in(output) == expected
    after = written(kept)
    stem = victim.name.partition(".")[0]
    again = {name for name, inode in before.items() if after[name] != inode}
    assert again
    assert {name for name in again if f"{victim.parent.name}/{stem}." not in name} == set()


@pytest.mark.kills
@pytest.mark.parametrize("part", range(2))
def test_restart_after_a_kill_before_a_file_operation_of_a_shuffle(
    source: Path, expected: dict[str, bytes], tmp_path: Path, part: int
) -> None:
    """Every other state that a crash can leave on disk, one after the other."""
    command = ["build", f"--input={source}", "--output=OUT", *FLAGS, *SMALL]
    crashes = crashes_of(tmp_path, command, 2 * part, 4)
    assert any(sum("checkpoints" in name for name in crash["finished"]) > 5 for crash in crashes)
    for crash in crashes:
        assert shards_in(Path(crash["folder"])) == expected, crash
        assert (crash["status"], crash["rewritten"], crash["changed"]) == (0, [], []), crash
        assert crash["documents_encoded"] == 80 - crash["documents_finished"], crash
