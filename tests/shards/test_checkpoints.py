"""Checkpoints: finished work is found again; unfinished or damaged work is not."""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkout import ROOT

from fineshards.errors import FineshardsError, OutputError
from fineshards.shards.block_writer import Documents, documents_schema
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts, LabelCount
from fineshards.shards.job.records import ShardRecord, TokenBlock
from fineshards.shards.layout import table_name
from fineshards.shards.npy import file_bytes
from fineshards.shards.split_rule import FirstShards
from fineshards.shards.tables.documents import source_schema
from fineshards.shards.token_blocks import SHARDS
from fineshards.storage.base import Entry
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.open import open_storage

PLACE = TokenBlock("blocks", 3, 12)
NO_TEST = FirstShards(0)
RECORD = ShardRecord(
    "train/train_0000.npy",
    "train",
    0,
    5,
    file_bytes(5),
    checksum_to_base64(crc32c(b"x" * file_bytes(5))),
    2,
    1,
    7,
    3,
    checksum_to_base64(crc32c(b"xxx")),
)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(open_storage(str(tmp_path / "out")), "f1ng3r")


def sources_of(rows: list[int], ids: list[str | None]) -> pa.RecordBatch:
    """Documents of file 3; the hash of the text of each is twice its row."""
    columns = [[3] * len(rows), rows, ids, [2 * row for row in rows]]
    schema = source_schema(NO_TEST)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def write_block(
    checkpoints: Checkpoints, batches: list[list[int]], place: TokenBlock = PLACE
) -> BlockSummary:
    """A block whose documents have the given lengths; every token is its index in the block."""
    rows = 0
    with checkpoints.blocks.create_block(place) as writer:
        for lengths in batches:
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
            tokens = np.arange(writer.tokens, writer.tokens + offsets[-1], dtype=np.uint32)
            numbers = range(rows, rows + len(lengths))
            ids = [None if n % 2 else f"id{n}" for n in numbers]
            sources = sources_of([n * 10 for n in numbers], ids)
            writer.append(Documents(tokens, offsets, sources))
            rows += len(lengths)
        counts = Counts(
            rows=rows + 3,
            documents=rows,
            nulls=2,
            rejected=1,
            tokens=sum(map(sum, batches)),
            text_bytes=17,
            by_reference=4,
            compared=5,
            labels=(LabelCount("dump", "CC-1", 1, 2), LabelCount("language", "en", 3, 4)),
        )
        return writer.finish(place.index, 13, counts)


@pytest.mark.parametrize("batches", [[], [[]], [[5]], [[1, 2], [3], [], [4, 1, 1]]])
def test_a_finished_block_is_found_with_its_summary(
    checkpoints: Checkpoints, batches: list[list[int]]
) -> None:
    summary = write_block(checkpoints, batches)
    assert (summary.file, summary.index, summary.blocks) == (3, 12, 13)
    assert checkpoints.blocks.read_summary(PLACE) == summary
    assert checkpoints.blocks.read_summary(dataclasses.replace(PLACE, index=11)) is None
    assert checkpoints.blocks.read_summary(dataclasses.replace(PLACE, file=4)) is None
    other_job = Checkpoints(checkpoints.storage, "another")
    assert other_job.blocks.read_summary(PLACE) is None
    content = checkpoints.storage.read_if_there(checkpoints.blocks.tokens_name(PLACE)) or b""
    assert content == np.arange(sum(map(sum, batches)), dtype="<u4").tobytes()


@pytest.mark.parametrize(("documents", "tokens"), [(1, 3), (0, 3), (2, 4), (2, 2)])
def test_a_block_with_other_counts_than_its_content_is_an_error_and_not_finished(
    checkpoints: Checkpoints, documents: int, tokens: int
) -> None:
    def write() -> None:
        with checkpoints.blocks.create_block(PLACE) as writer:
            flat, offsets = np.arange(3, dtype=np.uint32), np.array([0, 1, 3])
            writer.append(Documents(flat, offsets, sources_of([0, 1], ["a", "b"])))
            writer.finish(12, 13, Counts(rows=2, documents=documents, tokens=tokens))

    with pytest.raises(
        FineshardsError,
        match=rf"holds 2 documents and 3 tokens, expected {documents} and {tokens}\.",
    ):
        write()
    assert checkpoints.blocks.read_summary(PLACE) is None
    assert list(checkpoints.storage.entries("")) == []


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_while_a_block_is_written_leaves_no_block(checkpoints: Checkpoints) -> None:
    def fail_halfway() -> None:
        with checkpoints.blocks.create_block(PLACE) as writer:
            tokens = np.arange(3, dtype=np.uint32)
            writer.append(Documents(tokens, np.array([0, 3]), sources_of([0], ["a"])))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert list(checkpoints.storage.entries("")) == []
    assert checkpoints.blocks.read_summary(PLACE) is None


def test_a_full_disk_while_a_block_is_written_leaves_no_block(checkpoints: Checkpoints) -> None:
    program = """
import resource, sys
import numpy as np, pyarrow as pa
from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.errors import OutputError
from fineshards.shards.counts import Counts
from fineshards.shards.tables.documents import source_schema
from fineshards.shards.split_rule import FirstShards
from fineshards.shards.job.records import TokenBlock
from fineshards.storage.open import open_storage
block = TokenBlock("blocks", 3, 12)
checkpoints = Checkpoints(open_storage(sys.argv[1]), "f1ng3r")
ids = pa.array([str(hash(str(n))) * 10 for n in range(2000)], pa.string())
rows = np.arange(2000)
columns = [rows.astype(np.int32), rows, ids, rows.astype(np.uint64)]
sources = pa.record_batch(columns, schema=source_schema(FirstShards(0)))
for limit, length in ((4_000_000, 1000), (40_000, 1)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, 4_000_000))
    try:
        with checkpoints.blocks.create_block(block) as writer:
            for _ in range(3):
                tokens = np.zeros(2000 * length, np.uint32)
                writer.append(Documents(tokens, np.arange(2001) * length, sources))
            writer.finish(12, 13, Counts(6000, 6000, tokens=6000 * length))
    except OutputError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, checkpoints.storage.root],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert "00003-00012.tokens cannot be written: File too large." in first
    # Both files of the block are open, and either may be named.
    assert re.search(r"00003-00012\.\w+ cannot be written: File too large\.", second)
    assert done.stderr == ""
    assert list(checkpoints.storage.entries("")) == []


def test_finished_blocks_are_those_with_a_mark(checkpoints: Checkpoints) -> None:
    write_block(checkpoints, [[5, 6]])
    write_block(checkpoints, [[2]], dataclasses.replace(PLACE, index=13))
    write_block(checkpoints, [[]], dataclasses.replace(PLACE, file=100_000, index=123_456))
    write_block(checkpoints, [[9]], dataclasses.replace(PLACE, index=14))
    checkpoints.storage.delete(f"{checkpoints.folder}/blocks/00003-00014.json")
    finished = checkpoints.blocks.finished_blocks()
    tokens = {key: tokens for key, (tokens, _) in finished.items()}
    assert tokens == {(3, 12): 11, (3, 13): 2, (100_000, 123_456): 0}
    mark = os.stat(checkpoints.storage.path(f"{checkpoints.folder}/blocks/00003-00012.json"))
    assert finished[3, 12][1] == mark.st_mtime


@given(
    batches=st.lists(st.lists(st.integers(1, 6), max_size=4), max_size=5).filter(any),
    start=st.integers(0, 40),
    length=st.integers(1, 40),
)
def test_read_documents_gives_exactly_the_overlapping_rows(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], start: int, length: int
) -> None:
    checkpoints = Checkpoints(open_storage(str(tmp_path_factory.mktemp("out"))), "f1ng3r")
    write_block(checkpoints, batches)
    stop = start + length
    expected, offset = [], 0
    for document, tokens in enumerate(tokens for batch in batches for tokens in batch):
        own = set(range(offset, offset + tokens))
        if own & set(range(start, stop)):
            row = {"document": document, "offset": offset, "end": offset + tokens}
            id_ = None if document % 2 else f"id{document}"
            source = {"file": 3, "row": document * 10, "id": id_, "text_hash": document * 20}
            expected.append(row | source)
        offset += tokens
    table = checkpoints.blocks.read_documents(PLACE, "all", start, stop)
    assert table.schema.equals(documents_schema(NO_TEST))
    assert table.to_pylist() == expected


def test_the_first_finished_block_is_enough_to_know_that_there_is_one(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not checkpoints.has_finished_blocks()
    write_block(checkpoints, [[2]])
    listed = list(checkpoints.storage.entries(f"{checkpoints.folder}/blocks"))

    def entries(folder: str) -> Iterator[Entry]:
        if folder.endswith("/blocks"):
            yield from listed
            raise AssertionError("listed to its end")

    monkeypatch.setattr(checkpoints.storage, "entries", entries)
    assert checkpoints.has_finished_blocks()


def test_files_without_the_name_of_a_block_are_skipped(checkpoints: Checkpoints) -> None:
    for name in ("x-y", "3", "00003", "00003-00012-1", "-"):
        for ending in ("tokens", "parquet"):
            checkpoints.storage.write(f"{checkpoints.folder}/blocks/{name}.{ending}", b"")
    assert checkpoints.blocks.finished_blocks() == {}
    write_block(checkpoints, [[2]])
    assert [*checkpoints.blocks.finished_blocks()] == [(3, 12)]


def test_a_shard_is_finished_once_its_record_file_and_document_table_exist(
    checkpoints: Checkpoints,
) -> None:
    storage = checkpoints.storage
    shard, table = b"x" * RECORD.bytes, b"xxx"
    storage.write(RECORD.name, shard)
    storage.write(table_name(RECORD.name), table)
    assert checkpoints.finished_shard(RECORD.name) is None
    checkpoints.write_shard_record(RECORD)
    assert checkpoints.finished_shard(RECORD.name) == RECORD
    assert checkpoints.finished_shard("test/test_0000.npy") is None
    for damaged in (b"", shard[:-1], shard + b"x", shard[:-1] + b"y"):
        storage.write(RECORD.name, damaged)
        assert checkpoints.finished_shard(RECORD.name) is None
    storage.write(RECORD.name, shard)
    storage.write(table_name(RECORD.name), b"xx")
    assert checkpoints.finished_shard(RECORD.name) is None
    storage.delete(table_name(RECORD.name))
    assert checkpoints.finished_shard(RECORD.name) is None
    assert len(checkpoints.ledger.list(SHARDS)) == 1


def test_missing_documents_are_an_output_error(checkpoints: Checkpoints) -> None:
    with pytest.raises(OutputError, match=r"00003-00012\.parquet cannot be read"):
        checkpoints.blocks.read_documents(PLACE, "all", 0, 1)
