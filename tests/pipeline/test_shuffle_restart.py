"""A shuffled build killed at any moment resumes; damaged runs and buckets are made again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.checkout import ROOT
from support.damage import cut, flip_middle, zeroed
from support.kills import crashes_of, kill
from support.oracle import EOT, oracle_shuffled, read_texts, shards_in, tokens_of

from fineshards.cli.cli import main
from fineshards.shards.shuffle_order import Group

pytestmark = pytest.mark.growing

Damage = Callable[[Path], object]

FLAGS = ["--shard_tokens=10000", "--test_fraction=0.2", "--shuffle_seed=5", "--keep_checkpoints"]
DIRECT = ["--memory_bytes=40k"]
MERGED = ["--memory_bytes=40k", "--block_bytes=1"]


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
def finished(source: Path) -> dict[str, Path]:
    """Finished builds with their checkpoints, by name. Read-only."""
    outputs = {}
    for name, flags in (("direct", DIRECT), ("merged", MERGED)):
        outputs[name] = source.parent / name
        assert build(source, outputs[name], *flags) == 0
    return outputs


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
        for kind in ("blocks", "merged", "buckets")
        for path in sorted((folder / kind).glob("*"))
    }


@pytest.mark.parametrize(("kind", "flags"), [("direct", DIRECT), ("merged", MERGED)])
def test_finished_runs_and_buckets_are_found_again(
    finished: dict[str, Path],
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    kind: str,
    flags: list[str],
) -> None:
    output, kept = unfinished(finished[kind], tmp_path)
    before = written(kept)
    assert any(name.startswith("merged/") for name in before) == (kind == "merged")
    assert build(source, output, *flags) == 0
    assert shards_in(output) == expected
    assert written(kept) == before


def test_a_restart_with_other_buckets_makes_new_ones(
    finished: dict[str, Path], source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The size of buckets may be changed, such as after one that did not fit into memory."""
    output, kept = unfinished(finished["merged"], tmp_path)
    before = written(kept)
    assert build(source, output, "--memory_bytes=70k", "--block_bytes=1") == 0
    assert shards_in(output) == expected
    after = written(kept)
    assert before.items() < after.items()
    assert {name.partition("/")[0] for name in after.keys() - before.keys()} == {
        "merged",
        "buckets",
    }


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("blocks/*.tokens", zeroed),
        ("blocks/*.tokens", flip_middle),
        ("blocks/*.documents", cut),
        ("blocks/*.json", Path.unlink),
        ("merged/*.tokens", cut),
        ("merged/*.documents", flip_middle),
        ("merged/*.documents", zeroed),
        ("merged/*.tokens", Path.unlink),
        ("buckets/*.train.tokens", flip_middle),
        ("buckets/*.test.parquet", zeroed),
        ("buckets/*.train.parquet", cut),
    ],
)
def test_what_a_power_cut_damaged_is_made_again(
    finished: dict[str, Path],
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    pattern: str,
    damage: Damage,
) -> None:
    """Checkpoints are not flushed to disk, so their names may survive without their contents."""
    output, kept = unfinished(finished["merged"], tmp_path)
    # What is made of it is lost, too, or it would not be read.
    if not pattern.startswith("buckets"):
        shutil.rmtree(kept / "buckets")
    if pattern.startswith("blocks"):
        shutil.rmtree(kept / "merged")
    before = written(kept)
    victim = sorted(kept.glob(pattern))[1]
    damage(victim)
    assert build(source, output, *MERGED) == 0
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
    command = ["build", f"--input={source}", "--output=OUT", *FLAGS, *MERGED]
    crashes = crashes_of(tmp_path, command, 2 * part, 4)
    assert any(sum("checkpoints" in name for name in crash["finished"]) > 10 for crash in crashes)
    for crash in crashes:
        assert shards_in(Path(crash["folder"])) == expected, crash
        assert (crash["status"], crash["rewritten"], crash["changed"]) == (0, [], []), crash
        assert crash["documents_encoded"] == 80 - crash["documents_finished"], crash


@pytest.mark.parametrize("kind", ["blocks", "merged", "buckets"])
def test_a_build_killed_in_each_step_resumes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    output = tmp_path / "out"
    flags = [f"--input={source}", f"--output={output}", *FLAGS, *MERGED]
    command = [sys.executable, "-m", "fineshards", "build", *flags]
    job = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while job.poll() is None and not any(output.glob(f"checkpoints/*/{kind}/*")):
        time.sleep(0.005)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert build(source, output, *MERGED) == 0
    assert shards_in(output) == expected


def test_merged_ranges_are_found_again_after_a_kill_and_by_the_same_plan_alone(
    sample: Path, tmp_path: Path
) -> None:
    """15 MB of train in ten blocks: three groups, each cut into four ranges of its keys."""
    source, output = tmp_path / "in.parquet", tmp_path / "out"
    pq.write_table(pa.concat_tables([pq.read_table(sample)] * 6), source, row_group_size=700)
    encode = cache(lambda text: [EOT, *tokens_of(text)])
    expected = oracle_shuffled([read_texts(source)], 5, 10**6, "0.05", encode=encode)
    flags = ["--shard_tokens=1M", "--test_fraction=0.05", "--shuffle_seed=5", "--keep_checkpoints"]
    flags = [f"--input={source}", *flags, "--block_bytes=1M", "--workers=1"]
    ranges = ["build", *flags, "--memory_bytes=1700k"]

    def merged(folder: Path) -> dict[str, int]:
        paths = folder.glob("checkpoints/*/merged/*.json")
        return {path.name: path.stat().st_ino for path in paths}

    # The second range of the second group of train, which has 2 * 850_000 tokens below, too.
    place = Group(number=3, tokens=4 * 425_000, bits=4, range_bits=2, prefix=1).place
    name = f"{place.file:05d}-{place.index}.json"
    kill(f"replace:{name}", *ranges, f"--output={output}")
    before = merged(output)
    assert before
    assert name not in before
    assert main([*ranges, f"--output={output}"]) == 0
    assert shards_in(output) == expected
    after = merged(output)
    assert before.items() < after.items()
    assert len(after) == 1 + 3 * 4  # those of test have all keys

    # The same runs in each group, in two ranges.
    again, _ = unfinished(output, tmp_path / "again")
    copied = merged(again)
    assert main(["build", *flags, "--memory_bytes=3400k", f"--output={again}"]) == 0
    assert shards_in(again) == expected
    assert copied.items() < merged(again).items()
    assert len(merged(again)) == len(after) + 1 + 3 * 2
