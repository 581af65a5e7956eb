"""Checkpoints: files in `checkpoints/<fingerprint>/` from which a restarted job resumes.

    files/00003.json               the blocks of a source file (step Discover)
    blocks/00003-00012.tokens      a token block: tokens as in the shards, without a header
    blocks/00003-00012.parquet     the block's documents and summary; written after the tokens
    plan.json                      the layout of the shards (step Plan)
    shards/train_0017.json         the record of a finished shard; written after the shard

The later file of a pair marks the work as finished; without it the work is done again. Token blocks
have no header, so a shard is one header followed by whole or cut token blocks. Checkpoints are
short-lived and therefore not durable: a power cut may damage them. A restart checks them before it
uses them, and repeats the work behind a damaged one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import FineshardsError, OutputError
from fineshards.shards import npy
from fineshards.shards.counts import Counts
from fineshards.shards.job import Job
from fineshards.shards.layout import Layout, shard_stem, table_name
from fineshards.shards.records import Block, ShardRecord, from_fields
from fineshards.shards.reports import BlockSummary
from fineshards.storage.base import Storage
from fineshards.storage.checksums import file_checksum, write_with_checksum
from fineshards.storage.parquet import open_parquet

FOLDER = "checkpoints"
_SUMMARY_KEY = b"fineshards.summary"
_CHECKSUM_KEY = b"fineshards.crc32c"

# Documents per row group, which are kept in memory until it is written: some megabytes.
_ROW_GROUP_DOCUMENTS = 1 << 16

# Bytes per request for a block's documents: enough for those of most blocks.
_DOCUMENT_BYTES = 4 << 20

# document: number within the block. [offset, end): its tokens within the block, including EOT.
# row: number within the source file. id: the document's id in the source, or null.
DOCUMENTS_SCHEMA = pa.schema(
    [
        pa.field("document", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
    ]
)


class BlockWriter:
    """Appends documents to a token block that is being written."""

    def __init__(
        self, tokens: Any, documents: pq.ParquetWriter, dtype: np.dtype[np.unsignedinteger]
    ) -> None:
        self._tokens_file = tokens
        self._dtype = dtype
        self._documents_file = documents
        self._pending: list[pa.Table] = []
        self._pending_documents = 0
        self._checksum = 0
        self.tokens = 0
        self.documents = 0

    def append(
        self,
        tokens: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        ids: pa.Array,
    ) -> None:
        """Appends n documents: their tokens in one array, n+1 offsets, n row numbers, n ids.

        Raises OutputError for a token id that the dtype cannot hold.
        """
        if self._dtype.itemsize < tokens.itemsize and len(tokens):
            highest = int(tokens.max())
            if highest > np.iinfo(self._dtype).max:
                raise OutputError(
                    f"the tokenizer returned the id {highest}, which {self._dtype.name} cannot "
                    "hold, although its vocabulary says that every id fits. Use --dtype uint32, "
                    "and please report it."
                )
        content = np.ascontiguousarray(tokens, dtype=self._dtype).view(np.uint8)
        self._checksum = write_with_checksum(content, self._tokens_file, self._checksum)
        shifted = offsets + self.tokens
        numbers = np.arange(self.documents, self.documents + len(rows), dtype=np.int64)
        columns = [numbers, shifted[:-1], shifted[1:], rows, ids]
        self._pending.append(pa.table(columns, schema=DOCUMENTS_SCHEMA))
        self.tokens += len(tokens)
        self.documents += len(rows)
        self._pending_documents += len(rows)
        if self._pending_documents >= _ROW_GROUP_DOCUMENTS:
            self.write_documents()

    def finish(self, block: Block, counts: Counts) -> BlockSummary:
        """Stores the block's summary and the checksum of its tokens with its documents.

        Raises FineshardsError if `counts` differs from the documents and tokens appended.
        """
        if (counts.documents, counts.tokens) != (self.documents, self.tokens):
            raise FineshardsError(
                f"block {block.index} of file {block.file} holds {self.documents} documents and "
                f"{self.tokens} tokens, expected {counts.documents} and {counts.tokens}. This is a "
                "bug in fineshards; please report it."
            )
        summary = BlockSummary(block.file, block.index, block.blocks, counts)
        record = {"file": block.file, "index": block.index, "blocks": block.blocks}
        self._documents_file.add_key_value_metadata(
            {
                _SUMMARY_KEY: json.dumps(record | counts.to_record()),
                _CHECKSUM_KEY: str(self._checksum),
            }
        )
        return summary

    def write_documents(self) -> None:
        """Writes the rows of documents that are still in memory."""
        if self._pending:
            table = pa.concat_tables(self._pending)
            self._documents_file.write_table(table, row_group_size=_ROW_GROUP_DOCUMENTS)
            self._pending = []
            self._pending_documents = 0


class Checkpoints:
    """Names, readers and writers of one job's checkpoints. dtype: of its tokens."""

    def __init__(
        self,
        storage: Storage,
        fingerprint: str,
        dtype: np.dtype[np.unsignedinteger] = npy.TOKEN_DTYPE,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.folder = f"{FOLDER}/{fingerprint}"
        self._fingerprint = fingerprint

    @classmethod
    def of(cls, storage: Storage, job: Job) -> Checkpoints:
        """The checkpoints of a job in its output folder."""
        return cls(storage, job.fingerprint(), job.settings.token_dtype)

    def job(self) -> Job:
        """The job of these checkpoints, read from the output folder.

        Raises OutputError if another job has taken over the folder: the workers of the job that was
        replaced must stop before they write among the new shards.
        """
        job = Job.load(self.storage)
        if job is None or job.fingerprint() != self._fingerprint:
            raise OutputError(
                f"{self.storage.root} was taken over by another job (--overwrite), so this one "
                "stops. Let one job finish before you start another with the same output."
            )
        return job

    # -- discovered files

    def write_blocks(self, file: int, blocks: list[Block]) -> None:
        """Stores the blocks of a file."""
        content = json.dumps([asdict(block) for block in blocks])
        self.storage.write(self._blocks_name(file), content.encode(), durable=False)

    def read_blocks(self, file: int) -> list[Block] | None:
        """The blocks of a file, or None if they are not stored yet."""
        blocks = self._read_json(self._blocks_name(file))
        return None if blocks is None else [Block(**fields) for fields in blocks]

    # -- token blocks

    @contextmanager
    def create_block(self, block: Block) -> Iterator[BlockWriter]:
        """A token block to write; end the `with` body with the writer's `finish`.

        The tokens appear first and the documents last, so a document file means that the block is
        finished.
        """
        tokens_name = self.tokens_name(block.file, block.index)
        documents_name = self.documents_name(block.file, block.index)
        with (
            self.storage.create(documents_name, durable=False) as documents_file,
            _documents_writer(documents_file) as documents,
        ):
            with self.storage.create(tokens_name, durable=False) as tokens_file:
                writer = BlockWriter(tokens_file, documents, self.dtype)
                yield writer
            writer.write_documents()

    def read_summary(self, block: Block) -> BlockSummary | None:
        """The summary of a finished block; None if it is missing, incomplete or damaged."""
        documents_name = self.documents_name(block.file, block.index)
        tokens_name = self.tokens_name(block.file, block.index)
        if self.storage.size(documents_name) is None:
            return None
        try:
            with self.storage.open(documents_name) as file:
                metadata = pq.read_metadata(file).metadata
        except (pa.ArrowException, OSError):
            return None
        fields = json.loads(metadata[_SUMMARY_KEY])
        summary = from_fields(BlockSummary, fields, counts=Counts.from_record(fields))
        if self.storage.size(tokens_name) != summary.counts.tokens * self.dtype.itemsize:
            return None
        if not self.storage.verifies_content and not self._is_intact(
            documents_name, tokens_name, int(metadata[_CHECKSUM_KEY])
        ):
            return None
        return summary

    def _is_intact(self, documents_name: str, tokens_name: str, checksum: int) -> bool:
        """Whether a finished block's documents and tokens have their checksums."""
        try:
            with self.storage.open(documents_name) as file:
                for _ in open_parquet(file).iter_batches(use_threads=False):
                    pass
        except (pa.ArrowException, OSError):
            return False
        with self.storage.open(tokens_name) as file:
            return file_checksum(file) == checksum

    def read_documents(self, file: int, index: int, start: int, stop: int) -> pa.Table:
        """The documents of a block that have tokens in `[start, stop)`; schema DOCUMENTS_SCHEMA.

        Row groups without such documents are not read.
        """
        # Arrow's filters could do this, but take a fifth of a second to import.
        with self.storage.open(self.documents_name(file, index), _DOCUMENT_BYTES) as opened:
            parquet = open_parquet(opened)
            groups = [
                group
                for group in range(parquet.num_row_groups)
                if parquet.metadata.row_group(group).num_rows
                and _minimum(parquet, group, "offset") < stop
                and _maximum(parquet, group, "end") > start
            ]
            table = parquet.read_row_groups(groups, use_threads=False)
        first = np.searchsorted(table["end"].to_numpy(), start, side="right")
        last = np.searchsorted(table["offset"].to_numpy(), stop, side="left")
        return table.slice(first, last - first)

    def tokens_name(self, file: int, index: int) -> str:
        """The file of a block's tokens."""
        return f"{self.folder}/blocks/{file:05d}-{index:05d}.tokens"

    def documents_name(self, file: int, index: int) -> str:
        """The file of a block's documents; it exists once the block is finished."""
        return f"{self.folder}/blocks/{file:05d}-{index:05d}.parquet"

    def finished_blocks(self) -> dict[tuple[int, int], tuple[int, float]]:
        """The token count and completion time of each finished block, by (file, block)."""
        sizes, times = {}, {}
        for entry in self.storage.entries(f"{self.folder}/blocks"):
            stem, _, ending = entry.name.rpartition("/")[2].rpartition(".")
            file, _, index = stem.partition("-")
            if ending == "tokens":
                sizes[int(file), int(index)] = entry.size
            else:
                times[int(file), int(index)] = entry.modified
        return {
            key: (sizes[key] // self.dtype.itemsize, time)
            for key, time in times.items()
            if key in sizes
        }

    def finished_shards(self) -> list[float]:
        """The completion times of the finished shards, in any order."""
        return [entry.modified for entry in self.storage.entries(f"{self.folder}/shards")]

    def has_finished_blocks(self) -> bool:
        """Whether any block is finished."""
        entries = self.storage.entries(f"{self.folder}/blocks")
        return any(entry.name.endswith(".parquet") for entry in entries)

    # -- plan and shards

    def write_layout(self, layout: Layout) -> None:
        """Stores the layout, which `status` reads."""
        content = json.dumps(asdict(layout)).encode()
        self.storage.write(self._plan_name(), content, durable=False)

    def read_layout(self) -> Layout | None:
        """The layout, or None if it is not planned yet."""
        layout = self._read_json(self._plan_name())
        return None if layout is None else Layout(**layout)

    def write_shard_record(self, record: ShardRecord) -> None:
        """Marks a shard as finished."""
        content = json.dumps(asdict(record)).encode()
        self.storage.write(self._shard_name(record.name), content, durable=False)

    def read_shard_record(self, shard_name: str) -> ShardRecord | None:
        """The record of a finished shard; None if the shard is missing or incomplete."""
        fields = self._read_json(self._shard_name(shard_name))
        if fields is None:
            return None
        record = ShardRecord(**fields)
        complete = self.storage.size(shard_name) == record.bytes
        return record if complete and self.storage.size(table_name(shard_name)) else None

    def _read_json(self, name: str) -> Any:
        """The content of a file; None if it is missing, or damaged by a power cut."""
        content = self.storage.read_if_there(name)
        try:
            return None if content is None else json.loads(content)
        except ValueError:
            return None

    def _blocks_name(self, file: int) -> str:
        return f"{self.folder}/files/{file:05d}.json"

    def _plan_name(self) -> str:
        return f"{self.folder}/plan.json"

    def _shard_name(self, shard_name: str) -> str:
        return f"{self.folder}/shards/{shard_stem(shard_name)}.json"


def _minimum(parquet: pq.ParquetFile, group: int, column: str) -> int:
    index = DOCUMENTS_SCHEMA.get_field_index(column)
    value: int = parquet.metadata.row_group(group).column(index).statistics.min
    return value


def _maximum(parquet: pq.ParquetFile, group: int, column: str) -> int:
    index = DOCUMENTS_SCHEMA.get_field_index(column)
    value: int = parquet.metadata.row_group(group).column(index).statistics.max
    return value


def _documents_writer(opened: BinaryIO) -> pq.ParquetWriter:
    # The file is written once and soon read once or twice, so speed matters more than size.
    # `read_documents` skips row groups by these statistics.
    return pq.ParquetWriter(
        opened,
        DOCUMENTS_SCHEMA,
        compression="lz4",
        use_dictionary=False,
        write_statistics=["offset", "end"],
        write_page_checksum=True,
    )
