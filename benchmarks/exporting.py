"""How long exports take compared with reading the shards once, all from the disk."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import fineshards
from benchmarks.contestants import ROOT
from benchmarks.timings import Timing, in_turn

# 200 million tokens, 800 MB, in two shards, and four files for as many threads.
_REPEAT, _SHARD_TOKENS, _FILES = 300, 100_000_000, 4
_READ_BYTES = 1 << 20
_READ = "read the shards once"


def time_exports(work: Path, rounds: int, shrink: int) -> list[Timing]:
    """Timings of exports to Megatron, at 1/`shrink` of the full sizes."""
    dataset = _dataset(work / "exported", max(1, _REPEAT // shrink))
    shards = sorted(dataset.glob("t*/*.npy"))
    size = sum(shard.stat().st_size for shard in shards)

    def prepare() -> None:
        shutil.rmtree(work / "megatron", ignore_errors=True)
        os.sync()
        for shard in shards:
            _forget(shard)

    def export() -> object:
        per_file = size // 4 // _FILES - 1
        return fineshards.export(dataset, work / "megatron", "megatron", tokens_per_file=per_file)

    actions = {
        _READ: lambda: _read(shards),
        "cat into a file, flushed": lambda: _copy(shards, work / "megatron"),
        "export to megatron, copy": export,
    }
    runs = in_turn(actions, rounds, prepare)
    return [
        Timing(name, size // 4, "tokens", seconds, size, None if name == _READ else _READ)
        for name, seconds in runs.items()
    ]


def _dataset(folder: Path, repeat: int) -> Path:
    """A dataset of the sample's documents, again and again."""
    sample = pq.read_table(ROOT / "samples/debian_text.parquet", columns=["text", "id"])
    source = folder.with_suffix(".parquet")
    pq.write_table(pa.concat_tables([sample] * repeat), source, row_group_size=len(sample))
    fineshards.build(input=source, output=folder, shard_tokens=_SHARD_TOKENS, split_key="row")
    return folder


def _read(paths: Sequence[Path]) -> None:
    buffer = bytearray(_READ_BYTES)
    for path in paths:
        with open(path, "rb", 0) as file:
            while file.readinto(buffer):
                pass


def _copy(paths: Sequence[Path], folder: Path) -> None:
    folder.mkdir()
    with open(folder / "copy", "wb") as file:
        subprocess.run(["cat", *paths], stdout=file, check=True)
        os.fsync(file.fileno())


def _forget(path: Path) -> None:
    """Takes a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
