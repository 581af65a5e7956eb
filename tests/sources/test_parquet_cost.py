"""The cost of reading parquet: bytes read and memory."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.fresh_interpreter import run_program
from support.source_files import COLUMNS, describe

from fineshards.sources.formats.parquet import Parquet


class CountingFile(io.FileIO):
    """A file that counts the bytes read."""

    bytes_read = 0

    def read(self, size: int = -1) -> bytes:
        content = super().read(size)
        self.bytes_read += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        self.bytes_read += count or 0
        return count


def test_unused_columns_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    heavy = [os.urandom(10_000) for _ in range(2_000)]
    texts = [f"text {n}" for n in range(2_000)]
    pq.write_table(pa.table({"a": heavy, "text": texts, "z": heavy}), path)
    assert path.stat().st_size > 40_000_000
    file = describe(path)
    with CountingFile(path) as opened:
        blocks = Parquet().blocks(file, opened, COLUMNS, 1)
        assert opened.bytes_read < 1_000_000
        rows = [
            text
            for block in blocks
            for batch in Parquet().read(file, opened, block, COLUMNS)
            for text in batch.columns["text"].to_pylist()
        ]
        assert rows == texts
        assert opened.bytes_read < 2_000_000


_PEAK = """
import re, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.source_files import COLUMNS, blocks_of, describe
from fineshards.sources.reading import read_block
path = Path(sys.argv[1])
total = 0
for block in blocks_of(path):
    for batch in read_block(describe(path), COLUMNS, block):
        total += sum(map(len, batch.texts.to_pylist()))
print(total, re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def peak_memory(path: Path) -> tuple[int, int]:
    """Reads a file in a separate process; returns characters read and peak memory in bytes.

    Not from ru_maxrss, which starts at the parent's memory.
    """
    done = run_program(_PEAK, path)
    assert done.returncode == 0, done.stderr
    characters, kilobytes = map(int, done.stdout.split())
    return characters, kilobytes * 1024


def test_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(97, 123, size=(12_000, 10_000), dtype=np.uint8)
    offsets = np.arange(0, 120_000_001, 10_000, dtype=np.int32)
    texts = pa.Array.from_buffers(
        pa.string(), 12_000, [None, pa.py_buffer(offsets), pa.py_buffer(words)]
    )
    large, small = tmp_path / "large.parquet", tmp_path / "small.parquet"
    pq.write_table(pa.table({"text": texts}), large, row_group_size=12_000, compression="none")
    pq.write_table(pa.table({"text": texts.slice(0, 1_200)}), small, compression="none")
    assert pq.read_metadata(large).num_row_groups == 1
    assert large.stat().st_size > 120_000_000
    characters, peak = peak_memory(large)
    assert characters == 120_000_000
    characters, base = peak_memory(small)
    assert characters == 12_000_000
    # The row group is ten times larger; record batches and buffers are the same size for both.
    assert peak - base < 60_000_000
