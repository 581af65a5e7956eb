"""What a job leaves in `checkpoints/<fingerprint>/` so that a restart finds what is finished.

    files/00003.json               the blocks of a file (Discover)
    blocks/00003-00012.tokens      a token block: raw tokens as in the shards, nothing else
    blocks/00003-00012.parquet     its documents, and its summary; written after the tokens
    plan.json                      the layout of the shards (Plan)
    shards/train_0017.json         the record of a finished shard; written after the shard

The later file of each pair is the mark of completion: what lacks it is done again. Token blocks
have no header, so that a shard is a header and whole or cut token blocks. All of these are soon
read and then deleted, so they are not made to outlive a power cut; what an earlier run left is
checked before it is used, and done again if it is damaged.
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

# Documents whose rows are kept in memory before they become a row group: some megabytes.
_GROUP_DOCUMENTS = 1 << 16

# The documents of a usual block are read whole, in one request where requests have a price.
_DOCUMENT_BYTES = 4 << 20

# document: number within the block. [offset, end): its tokens within the block, EOT included.
# row: number within the source file. id: the source's own name for it, null where it has none.
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
        self._waiting: list[pa.Table] = []
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
        """Appends n documents: their flat tokens, n+1 offsets into them, n row numbers, n ids.

        Raises OutputError for a token that the dtype cannot hold.
        """
        if self._dtype.itemsize < tokens.itemsize and len(tokens):
            highest = int(tokens.max())
            if highest > np.iinfo(self._dtype).max:
                raise OutputError(
                    f"the tokenizer gave the id {highest}, which {self._dtype.name} cannot hold, "
                    "though its vocabulary should. Please report it; --dtype uint32 holds it."
                )
        content = np.ascontiguousarray(tokens, dtype=self._dtype).view(np.uint8)
        self._checksum = write_with_checksum(content, self._tokens_file, self._checksum)
        shifted = offsets + self.tokens
        numbers = np.arange(self.documents, self.documents + len(rows), dtype=np.int64)
        columns = [numbers, shifted[:-1], shifted[1:], rows, ids]
        self._waiting.append(pa.table(columns, schema=DOCUMENTS_SCHEMA))
        self.tokens += len(tokens)
        self.documents += len(rows)
        if sum(map(len, self._waiting)) >= _GROUP_DOCUMENTS:
            self.write_documents()

    def finish(self, block: Block, counts: Counts) -> BlockSummary:
        """Stores the block's summary, and the checksum of its tokens, with its documents.

        Raises FineshardsError if other documents or tokens were counted than appended.
        """
        if (counts.documents, counts.tokens) != (self.documents, self.tokens):
            raise FineshardsError(
                f"block {block.index} of file {block.file} holds {self.documents} documents and "
                f"{self.tokens} tokens, but {counts.documents} and {counts.tokens} were counted. "
                "Please report it."
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
        """Writes what is known of the documents and was not written yet."""
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._documents_file.write_table(table, row_group_size=_GROUP_DOCUMENTS)
            self._waiting = []


class Checkpoints:
    """Names, readers and writers of one job's checkpoints; dtype is that of its tokens."""

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
        """The job that these checkpoints belong to.

        Raises OutputError if the output folder belongs to another one by now: workers of a job
        that was replaced must stop before they write among the shards of its successor.
        """
        job = Job.load(self.storage)
        if job is None or job.fingerprint() != self._fingerprint:
            raise OutputError(
                f"{self.storage.root} was taken over by another job (--overwrite), so this one "
                "ends. Let one job finish before the next one is started on its output."
            )
        return job

    # -- discovered files

    def write_blocks(self, file: int, blocks: list[Block]) -> None:
        """Remembers the blocks of a file."""
        content = json.dumps([asdict(block) for block in blocks])
        self.storage.write(self._blocks_name(file), content.encode(), durable=False)

    def read_blocks(self, file: int) -> list[Block] | None:
        """The blocks of a file, or None if it was not discovered yet."""
        blocks = self._read_json(self._blocks_name(file))
        return None if blocks is None else [Block(**fields) for fields in blocks]

    # -- token blocks

    @contextmanager
    def create_block(self, block: Block) -> Iterator[BlockWriter]:
        """A token block to write; the body ends with the writer's `finish`.

        The tokens get their name first and the documents last, so that a document file stands for
        a finished block.
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
        """The summary of a finished block, or None if it is still to be done."""
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
        """Whether a finished block's documents and tokens are what was written."""
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

        Row groups without any are not read.
        """
        # Arrow's own filters would do it, but take a fifth of a second to be imported.
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
        """The name of a token block's tokens."""
        return f"{self.folder}/blocks/{file:05d}-{index:05d}.tokens"

    def documents_name(self, file: int, index: int) -> str:
        """The name of a token block's documents, which is there when the block is finished."""
        return f"{self.folder}/blocks/{file:05d}-{index:05d}.parquet"

    def finished_blocks(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Tokens and time of completion of each finished block, by (file, block)."""
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
        """The times at which the finished shards were finished, in no order."""
        return [entry.modified for entry in self.storage.entries(f"{self.folder}/shards")]

    def has_finished_blocks(self) -> bool:
        """Whether any block is finished."""
        entries = self.storage.entries(f"{self.folder}/blocks")
        return any(entry.name.endswith(".parquet") for entry in entries)

    # -- plan and shards

    def write_layout(self, layout: Layout) -> None:
        """Remembers the layout, for people and for `status`."""
        content = json.dumps(asdict(layout)).encode()
        self.storage.write(self._plan_name(), content, durable=False)

    def read_layout(self) -> Layout | None:
        """The layout, or None before all blocks are tokenized."""
        layout = self._read_json(self._plan_name())
        return None if layout is None else Layout(**layout)

    def write_shard_record(self, record: ShardRecord) -> None:
        """Marks a shard as finished."""
        content = json.dumps(asdict(record)).encode()
        self.storage.write(self._shard_name(record.name), content, durable=False)

    def read_shard_record(self, shard_name: str) -> ShardRecord | None:
        """The record of a finished shard, or None if it is still to be written."""
        fields = self._read_json(self._shard_name(shard_name))
        if fields is None:
            return None
        record = ShardRecord(**fields)
        whole = self.storage.size(shard_name) == record.bytes
        return record if whole and self.storage.size(table_name(shard_name)) else None

    def _read_json(self, name: str) -> Any:
        """The content of a file; None if it is not there, or was lost in a power cut."""
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
    # Written once and read once or twice, soon: quick matters more than small. Statistics are for
    # `read_documents`, which skips row groups by them.
    return pq.ParquetWriter(
        opened,
        DOCUMENTS_SCHEMA,
        compression="lz4",
        use_dictionary=False,
        write_statistics=["offset", "end"],
        write_page_checksum=True,
    )
