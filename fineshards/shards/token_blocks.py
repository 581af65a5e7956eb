"""Token blocks in the checkpoints of a job: tokens and documents, in order or sorted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import OutputError
from fineshards.shards.block_writer import (
    CHECKSUM_KEY,
    SUMMARY_KEY,
    BlockWriter,
    Documents,
    StreamPart,
    documents_writer,
)
from fineshards.shards.checkpoint_file import beginnings, block_of, is_whole, read_json
from fineshards.shards.job.records import JSON_ERRORS, TokenBlock
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import ONE_STREAM, Shuffle, SplitRule
from fineshards.shards.parquet_file import open_parquet
from fineshards.shards.shuffle_order import Fragment
from fineshards.shards.sorted_runs import RunWriter, parse_cells
from fineshards.storage.base import Storage

# Ends the name of what is left of a block whose tokens are in finished shards.
_WRITTEN = ".written.json"
# Bytes per request for a block's documents: enough for those of most blocks.
_DOCUMENT_BYTES = 4 << 20


class OtherTokensError(Exception):
    """A dropped block has other tokens when it is made again."""


class TokenBlocks:
    """Names, readers and writers of the token blocks below a folder of checkpoints.

    dtype: of the tokens. rule: of the split, which decides the streams. chat: whether documents are
    conversations.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        dtype: np.dtype[np.unsignedinteger],
        rule: SplitRule,
        chat: bool,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._dtype = dtype
        self._rule = rule
        self._chat = chat
        self._mark_stream = rule.streams[-1]
        # How the names of the files end that mark a block as finished.
        self.marks = (f"{_suffix(self._mark_stream)}.parquet", ".json")
        # Tokens of blocks whose parts are dropped, which `status` asks for again and again.
        self._counted: dict[TokenBlock, int] = {}

    @contextmanager
    def create_block(self, name: TokenBlock) -> Iterator[BlockWriter]:
        """A token block to write; end the `with` body with the writer's `finish`.

        The document file of the last stream appears last, even if it is empty, so it means that
        the block is finished. Raises OtherTokensError, and nothing appears, if the block was
        dropped and had other tokens.
        """

        def create_documents(stream: str) -> pq.ParquetWriter:
            opened = files.enter_context(
                self._storage.create(self.documents_name(name, stream), durable=False)
            )
            return files.enter_context(documents_writer(opened, self._rule, self._chat))

        def open_part(stream: str) -> StreamPart:
            documents = mark if stream == self._mark_stream else create_documents(stream)
            opened = self._storage.create(self.tokens_name(name, stream), durable=False)
            return StreamPart(files.enter_context(opened), documents)

        with ExitStack() as files:
            mark = create_documents(self._mark_stream)
            writer = BlockWriter(open_part, mark, name, self._dtype, self._rule)
            yield writer
            written = self._read_written(name)
            if written and written["crc32c"] != writer.checksums:
                raise OtherTokensError

    def read_summary(
        self, name: TokenBlock, checked: Collection[str] | None = None
    ) -> BlockSummary | None:
        """The summary of a finished block; None if it is missing, incomplete or damaged.

        checked: the streams whose parts are looked at; all by default.
        """
        try:
            mark: Any = self._read_written(name) or self._read_mark(name)
            summary = BlockSummary.from_record(mark["summary"])
            checksums = dict(mark["crc32c"])
        except JSON_ERRORS:
            return None
        for stream, sums in zip(self._rule.streams, summary.streams(), strict=True):
            if stream not in checksums or not (checked is None or stream in checked):
                continue
            try:
                whole = self._is_complete(name, stream, sums.tokens, checksums[stream])
            except OutputError:
                if not self.is_dropped(name, stream):
                    raise
                whole = False  # another launch has dropped it meanwhile
            if not whole and not (checked is None and self.is_dropped(name, stream)):
                return None
        return summary

    def _read_mark(self, name: TokenBlock) -> dict[str, Any] | None:
        """The summary of a finished block, and the checksums of its tokens by stream."""
        mark = self.documents_name(name, self._mark_stream)
        try:
            if self._storage.size(mark) is not None:
                with self._storage.open(mark) as file:
                    metadata = pq.read_metadata(file).metadata
                summary, checksums = metadata[SUMMARY_KEY], metadata[CHECKSUM_KEY]
                return {"summary": json.loads(summary), "crc32c": json.loads(checksums)}
        except (pa.ArrowException, OSError, *JSON_ERRORS):
            return None
        except OutputError:
            if self._storage.size(mark) is not None:
                raise
        return self._read_written(name)  # dropped meanwhile, if it was there

    def drop_part(self, name: TokenBlock, stream: str) -> None:
        """Deletes a part whose tokens are in finished shards; a record of its block stays."""
        if self._read_written(name) is None:
            if (mark := self._read_mark(name)) is None:
                return
            self._storage.write(self._written_name(name), json.dumps(mark).encode(), durable=False)
        # The tokens first: without them the part is known to be dropped.
        self._storage.delete(self.tokens_name(name, stream))
        self._storage.delete(self.documents_name(name, stream))

    def is_dropped(self, name: TokenBlock, stream: str) -> bool:
        """Whether a part of a block was dropped, and is not there again."""
        # Its documents appear last, and its tokens go first: only with both it is whole.
        files = self.documents_name(name, stream), self.tokens_name(name, stream)
        return bool(self._read_written(name)) and None in map(self._storage.size, files)

    def _tokens_written(self, name: TokenBlock) -> int:
        """The number of tokens of a block whose record says that its parts are dropped."""
        if name not in self._counted:
            with suppress(OutputError):  # a job that ends deletes it meanwhile
                record = self._read_written(name)
                self._counted[name] = record["summary"]["tokens"] if record else 0
        return self._counted.get(name, 0)

    def _read_written(self, name: TokenBlock) -> dict[str, Any] | None:
        """As `_read_mark`, what is left of a block of which parts were dropped."""
        if self._storage.composes:
            return None
        found = read_json(self._storage, self._written_name(name))
        try:
            BlockSummary.from_record(found["summary"])
            return {"summary": found["summary"], "crc32c": dict(found["crc32c"])}
        except JSON_ERRORS:
            return None

    def _is_complete(self, name: TokenBlock, stream: str, tokens: int, checksum: int) -> bool:
        """Whether a part of a finished block is there and, on a disk, has its checksums."""
        documents_name = self.documents_name(name, stream)
        tokens_name = self.tokens_name(name, stream)
        if self._storage.size(documents_name) is None:
            return False
        if not is_whole(self._storage, tokens_name, tokens * self._dtype.itemsize, checksum):
            return False
        if self._storage.verifies_content:
            return True
        try:
            with self._storage.open(documents_name) as file:
                for _ in open_parquet(file).iter_batches(use_threads=False):
                    pass
        except (pa.ArrowException, OSError):
            return False
        return True

    def read_documents(self, name: TokenBlock, stream: str, start: int, stop: int) -> pa.Table:
        """The documents of a block's part that have tokens in `[start, stop)`.

        Row groups without such documents are not read.
        """
        # Arrow's filters could do this, but take a fifth of a second to import.
        with self._storage.open(self.documents_name(name, stream), _DOCUMENT_BYTES) as opened:
            parquet = open_parquet(opened)
            groups = [
                group
                for group in range(parquet.num_row_groups)
                if parquet.metadata.row_group(group).num_rows
                and _statistics(parquet, group, "offset").min < stop
                and _statistics(parquet, group, "end").max > start
            ]
            table = parquet.read_row_groups(groups, use_threads=False)
        first = np.searchsorted(table["end"].to_numpy(), start, side="right")
        last = np.searchsorted(table["offset"].to_numpy(), stop, side="left")
        return table.slice(first, last - first)

    @contextmanager
    def create_runs(
        self, name: TokenBlock, shuffle: Shuffle, run_bytes: int, bits: int | None = None
    ) -> Iterator[RunWriter]:
        """A sorted token block to write; end the `with` body with the writer's `finish`."""
        with (
            self._storage.create(self.tokens_name(name), durable=False) as tokens,
            self._storage.create(self._cells_name(name), durable=False) as documents,
        ):
            writer = RunWriter(
                name, tokens, documents, self._dtype, self._rule, shuffle, run_bytes, bits
            )
            yield writer
        mark = json.dumps(writer.mark()).encode()
        self._storage.write(self._runs_name(name), mark, durable=False)

    def read_runs(self, name: TokenBlock) -> BlockSummary | None:
        """The summary of a finished sorted block; None if it is missing, incomplete or damaged."""
        record = read_json(self._storage, self._runs_name(name))
        try:
            for file, kind in (
                (self.tokens_name(name), "tokens"),
                (self._cells_name(name), "documents"),
            ):
                if not is_whole(self._storage, file, record["bytes"][kind], record["crc32c"][kind]):
                    return None
            return BlockSummary.from_record(record)
        except JSON_ERRORS:
            return None

    def read_fragment(self, fragment: Fragment) -> Documents:
        """The documents of a fragment."""
        size = self._dtype.itemsize
        content = self._storage.read_range(
            self._cells_name(fragment.block), fragment.first_byte, fragment.last_byte
        )
        lengths, sources = parse_cells(content, self._rule, self._chat)
        tokens = self._storage.read_range(
            self.tokens_name(fragment.block), fragment.start * size, fragment.stop * size
        )
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Documents(np.frombuffer(tokens, self._dtype), offsets, sources)

    def tokens_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        """The file of the tokens of a block's part."""
        return f"{self._part_name(name, stream)}.tokens"

    def documents_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        """The file of the documents of a block's part."""
        return f"{self._part_name(name, stream)}.parquet"

    def _cells_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}.documents"

    def _runs_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}.json"

    def _written_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}{_WRITTEN}"

    def _part_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        return f"{self._folder}/{name.folder}/{name.file:05d}-{name.index:05d}{_suffix(stream)}"

    def finished_blocks(
        self, folder: str = "blocks", files: int = 0
    ) -> dict[tuple[int, int], tuple[int, float]]:
        """The token count and completion time of each finished block, by (file, block).

        folder: `blocks`, or `buckets`, whose blocks are those of documents in random order. files:
        how many source files there are, to list the blocks of many side by side; 0 for not known.
        """
        sizes: dict[tuple[int, int], int] = defaultdict(int)
        times: dict[tuple[int, int], float] = {}
        written: dict[tuple[int, int], int] = {}
        listed = self._storage.entries_by_beginning(f"{self._folder}/{folder}", beginnings(files))
        for entry in listed:
            key = block_of(entry.name)
            if key is None:
                continue
            if entry.name.endswith(".tokens"):
                sizes[key] += entry.size
            elif entry.name.endswith(self.marks):
                times[key] = min(entry.modified, times.get(key, entry.modified))
            if entry.name.endswith(_WRITTEN):
                written[key] = self._tokens_written(TokenBlock(folder, *key))
        tokens = {key: sizes[key] // self._dtype.itemsize for key in times} | written
        return {key: (tokens[key], time) for key, time in times.items()}


def _statistics(parquet: pq.ParquetFile, group: int, column: str) -> Any:
    index = parquet.schema_arrow.get_field_index(column)
    return parquet.metadata.row_group(group).column(index).statistics


def _suffix(stream: str) -> str:
    """What distinguishes the parts of a block in their names."""
    return "" if stream == ONE_STREAM else f".{stream}"
