"""Token blocks in the checkpoints of a job: tokens and documents, in order or sorted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import ValidationError, convert

from fineshards.errors import OutputError
from fineshards.shards.block_writer import (
    BlockWriter,
    CheckedFile,
    Documents,
    StreamPart,
    documents_writer,
)
from fineshards.shards.checkpoint_file import beginnings, block_of, is_whole, read_json, write_json
from fineshards.shards.counts import Sums
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import ONE_STREAM, Shuffle, SplitRule
from fineshards.shards.parquet_file import open_parquet
from fineshards.shards.shuffle_order import Fragment
from fineshards.shards.sorted_runs import RunWriter, parse_cells
from fineshards.storage.base import Storage

# How the names of the files end that mark a block as finished.
MARK = ".json"
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
        # Tokens of finished blocks, which `status` asks for again and again.
        self._counted: dict[TokenBlock, int] = {}

    @contextmanager
    def create_block(self, name: TokenBlock) -> Iterator[BlockWriter]:
        """A token block to write; end the `with` body with the writer's `finish`.

        Its mark is written last, and means that the block is finished. Raises OtherTokensError, and
        nothing appears, if the block was dropped and had other tokens.
        """

        def open_part(stream: str) -> StreamPart:
            table = CheckedFile(
                files.enter_context(
                    self._storage.create(self.documents_name(name, stream), durable=False)
                )
            )
            documents = files.enter_context(documents_writer(table, self._rule, self._chat))
            tokens = self._storage.create(self.tokens_name(name, stream), durable=False)
            return StreamPart(files.enter_context(tokens), table, documents)

        with ExitStack() as files:
            writer = BlockWriter(open_part, name, self._dtype, self._rule)
            yield writer
            mark = None if self._storage.composes else self._read_mark(name)
            before = mark["crc32c"] if mark else writer.checksums
            if before != writer.checksums and any(self.is_dropped(name, each) for each in before):
                raise OtherTokensError
        write_json(self._storage, self._mark_name(name), writer.mark())

    def read_summary(
        self, name: TokenBlock, checked: Collection[str] | None = None
    ) -> BlockSummary | None:
        """The summary of a finished block; None if it is missing, incomplete or damaged.

        checked: the streams whose parts are looked at; all by default.
        """
        mark = self._read_mark(name)
        if mark is None:
            return None
        summary: BlockSummary = mark["summary"]
        for stream, sums in zip(self._rule.streams, summary.streams(), strict=True):
            if stream not in mark["crc32c"] or not (checked is None or stream in checked):
                continue
            whole = self._is_whole(name, stream, self.documents_name(name, stream), sums, mark)
            if not whole and not (checked is None and self.is_dropped(name, stream)):
                return None
        return summary

    def _is_whole(
        self, name: TokenBlock, stream: str, documents: str, sums: Sums, mark: dict[str, Any]
    ) -> bool:
        """Whether a part of a block is what its mark says. documents: the file of its documents."""
        tokens = sums.tokens * self._dtype.itemsize, mark["crc32c"].get(stream)
        its = mark["documents"].get(stream, (0, 0))
        there = is_whole(self._storage, self.tokens_name(name, stream), *tokens)
        return there and is_whole(self._storage, documents, *its)

    def _read_mark(self, name: TokenBlock) -> dict[str, Any] | None:
        """The mark of a finished block: see BlockWriter. None if it is missing or damaged."""
        mark = read_json(self._storage, self._mark_name(name))
        try:
            tables = {key: dict(mark[key]) for key in ("crc32c", "documents")}
            return tables | {"summary": convert(mark["summary"], BlockSummary)}
        except (KeyError, TypeError, ValueError, ValidationError):
            return None

    def drop_part(self, name: TokenBlock, stream: str) -> None:
        """Deletes a block's part, whose tokens are all in finished shards; the mark stays."""
        # The tokens first: without them the part is known to be dropped.
        self._storage.delete(self.tokens_name(name, stream))
        self._storage.delete(self.documents_name(name, stream))

    def is_dropped(self, name: TokenBlock, stream: str) -> bool:
        """Whether a part of a finished block was dropped, and is not there again."""
        # Its documents appear last, and its tokens go first: only with both it is whole.
        files = self.documents_name(name, stream), self.tokens_name(name, stream)
        can = name.folder == "blocks" and not self._storage.composes
        return can and None in map(self._storage.size, files)

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
        write_json(self._storage, self._mark_name(name), writer.mark())

    def read_runs(self, name: TokenBlock) -> BlockSummary | None:
        """The summary of a finished sorted block; None if it is missing, incomplete or damaged."""
        mark = self._read_mark(name)
        if mark is None:
            return None
        summary: BlockSummary = mark["summary"]
        sums = Sums(summary.counts.documents, summary.counts.tokens)
        whole = self._is_whole(name, ONE_STREAM, self._cells_name(name), sums, mark)
        return summary if whole else None

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

    def _mark_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}{MARK}"

    def _part_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        suffix = "" if stream == ONE_STREAM else f".{stream}"
        return f"{self._folder}/{name.folder}/{name.file:05d}-{name.index:05d}{suffix}"

    def finished_blocks(
        self, folder: str = "blocks", files: int = 0
    ) -> dict[tuple[int, int], tuple[int, float]]:
        """The token count and completion time of each finished block, by (file, block).

        folder: `blocks`, or `buckets`, whose blocks are those of documents in random order. files:
        how many source files there are, to list the blocks of many side by side; 0 for not known.
        """
        sizes: dict[tuple[int, int], int] = defaultdict(int)
        times: dict[tuple[int, int], float] = {}
        listed = self._storage.entries_by_beginning(f"{self._folder}/{folder}", beginnings(files))
        for entry in listed:
            key = block_of(entry.name)
            if key is None:
                continue
            if entry.name.endswith(".tokens"):
                sizes[key] += entry.size
            elif entry.name.endswith(MARK):
                times[key] = entry.modified
        if self._storage.composes:
            return {key: (sizes[key] // self._dtype.itemsize, times[key]) for key in times}
        counts = {key: self._count(TokenBlock(folder, *key)) for key in times}
        return {key: (count, times[key]) for key, count in counts.items() if count is not None}

    def _count(self, name: TokenBlock) -> int | None:
        """The number of tokens of a finished block, parts of which may be dropped."""
        if name not in self._counted:
            with suppress(OutputError):  # a job that ends deletes it meanwhile
                if mark := self._read_mark(name):
                    self._counted[name] = mark["summary"].counts.tokens
        return self._counted.get(name)


def _statistics(parquet: pq.ParquetFile, group: int, column: str) -> Any:
    index = parquet.schema_arrow.get_field_index(column)
    return parquet.metadata.row_group(group).column(index).statistics
