"""Arrow IPC files, Feather and streams: blocks of record batches, and every row once, in order."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, ipc
from support.source_files import COLUMNS, blocks_of, describe, read_all

from fineshards.errors import InputError
from fineshards.shards.job.settings import Columns
from fineshards.sources.reading import read_block
from fineshards.sources.rows import BATCH_ROWS

TEXTS = ["b", None, "", "a", "naïve 中文", "\ufeff", "a\x00b", "b"]
Write = Callable[..., None]


def written(make: Any, legacy: bool = False, compression: str | None = None) -> Write:
    def write(path: Path, table: pa.Table, rows: int = 1 << 20) -> None:
        options = ipc.IpcWriteOptions(use_legacy_format=legacy, compression=compression)
        if legacy:
            options.metadata_version = ipc.MetadataVersion.V4
        with path.open("wb") as file, make(file, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)

    return write


FILES: dict[str, Write] = {
    "file": written(ipc.new_file),
    "lz4": written(ipc.new_file, compression="lz4"),
    "legacy file": written(ipc.new_file, legacy=True),
    "feather": lambda path, table, rows=1 << 20: feather.write_feather(
        table, str(path), chunksize=rows
    ),
}
STREAMS: dict[str, Write] = {
    "stream": written(ipc.new_stream),
    "zstd stream": written(ipc.new_stream, compression="zstd"),
    "legacy stream": written(ipc.new_stream, legacy=True),
}


@pytest.fixture(params=FILES | STREAMS)
def write(request: pytest.FixtureRequest) -> Write:
    return (FILES | STREAMS)[request.param]


def table(rows: int) -> pa.Table:
    texts = [TEXTS[n % len(TEXTS)] for n in range(rows)]
    ids = pa.array([str(n) for n in range(rows)], pa.string())
    return pa.table({"n": range(rows), "text": pa.array(texts, pa.string()), "id": ids})


def test_every_row_is_read_once_and_in_order(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "a.arrow"
    whole = table(5_000)
    expected = list(
        zip(range(5_000), whole["text"].to_pylist(), whole["id"].to_pylist(), strict=True)
    )
    for rows in (1, 700, 5_000):
        write(path, whole.slice(0, 50) if rows == 1 else whole, rows)
        for block_bytes in (1, 10_000, 10**9):
            read = read_all(path, block_bytes, Columns("text", "id", True, others=("n",)))
            assert (read.rows, read.bad) == (expected[: 50 if rows == 1 else 5_000], [])
            assert read.others["n"] == list(range(len(read.rows)))


@pytest.mark.parametrize("name", FILES)
def test_a_block_is_record_batches_of_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.feather"
    FILES[name](path, table(95), 10)
    each = blocks_of(path, 1)
    assert [(block.first_group, block.stop_group) for block in each] == [
        (n, n + 1) for n in range(10)
    ]
    assert [block.first_row for block in each] == list(range(0, 100, 10))
    assert all(block.bytes > 10 for block in each)
    two = blocks_of(path, 2 * each[0].bytes)
    assert [(block.first_group, block.stop_group) for block in two[:2]] == [(0, 2), (2, 4)]
    file = describe(path)
    for block in reversed(two):
        batches = list(read_block(file, COLUMNS, block))
        assert [n for batch in batches for n in batch.numbers.tolist()] == list(
            range(block.first_row, min(block.first_row + 20, 95))
        )


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_one_block(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.arrow"
    STREAMS[name](path, table(95), 10)
    (block,) = blocks_of(path, 1)
    assert (block.blocks, block.bytes) == (1, path.stat().st_size)


def test_a_file_without_rows_has_an_empty_block(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "a.arrow"
    write(path, table(0))
    assert len(blocks_of(path)) == 1
    assert read_all(path).rows == []


def test_what_the_datasets_library_caches_is_read(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": TEXTS * 500, "id": list(range(4_000))}).save_to_disk(tmp_path / "d")
    (path,) = (tmp_path / "d").glob("*.arrow")
    assert read_all(path).texts == TEXTS * 500


def test_a_large_record_batch_is_several_record_batches(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "a.arrow"
    write(path, table(3 * BATCH_ROWS))
    batches = list(read_block(describe(path), COLUMNS, blocks_of(path)[0]))
    assert [len(batch.numbers) for batch in batches] == [BATCH_ROWS] * 3


def test_a_truncated_file_is_an_error(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "a.arrow"
    write(path, table(300), 50)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 57), len(whole) - 1, len(whole) - 8]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"a\.arrow"):
            read_all(path)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_without_its_end_is_an_error(tmp_path: Path, name: str) -> None:
    """As a writer leaves it that was killed between two record batches."""
    path = tmp_path / "a.arrow"
    STREAMS[name](path, pa.table({"text": ["some text"] * 40}), 10)
    end = 4 if name.startswith("legacy") else 8
    if end == 8:
        path.write_bytes(path.read_bytes()[:-end])
        with pytest.raises(InputError, match="does not end as a finished Arrow stream"):
            blocks_of(path)


@pytest.mark.parametrize("name", STREAMS)
def test_joined_streams_are_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.arrow"
    STREAMS[name](path, table(40), 10)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(InputError, match="Streams that were joined cannot be read"):
        read_all(path)


def test_damage_anywhere_is_an_error_or_harmless(tmp_path: Path, write: Write) -> None:
    """Arrow has no checksums, so some damage shows as another text; none ends the process."""
    path = tmp_path / "a.arrow"
    write(path, table(60), 30)
    whole = path.read_bytes()
    chosen = random.Random(4)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        with suppress(InputError):
            read = read_all(path)
            assert len(read.rows) + len(read.bad) <= 60


@pytest.mark.parametrize("content", [b"", b"PAR1", b"FEA1" + bytes(50), b"ARROW1\0\0" * 4])
def test_other_content_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.feather"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not readable Arrow IPC"):
        blocks_of(path)
