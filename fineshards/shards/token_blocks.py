"""Token blocks in the checkpoints of a job: tokens and documents, in order or sorted."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.block_writer import (
    BlockWriter,
    CheckedFile,
    Documents,
    StreamPart,
    documents_writer,
)
from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import Piece, ShardRecord, TokenBlock
from fineshards.shards.layout import Layout, ShardKey, Shuffle, unfinished_key, unfinished_stem
from fineshards.shards.ledger import ENTRY, Finished, Kind, Ledger, Range
from fineshards.shards.parquet_file import open_parquet
from fineshards.shards.piece_plan import Place
from fineshards.shards.record import replace
from fineshards.shards.shuffle_order import Fragment, RunWriter, parse_cells
from fineshards.shards.split_rule import ONE_STREAM, SplitRule
from fineshards.storage.base import FileRange, Storage

# Bytes per request for a block's documents: enough for those of most blocks.
_DOCUMENT_BYTES = 4 << 20
BLOCKS = {folder: Kind(folder, BlockSummary) for folder in ("blocks", "buckets")}
SHARDS = Kind("shards", ShardRecord)
LAYOUT, PLAN = Kind("", Layout), "plan"
_KEY = re.compile(r"(\d{5,})-(\d{5,})", re.ASCII)


@dataclass
class TokenBlocks:
    """Names, readers and writers of the token blocks below a folder of checkpoints.

    dtype: of the tokens. rule: of the split, which decides the streams. chat: whether documents are
    conversations.
    """

    storage: Storage
    folder: str
    dtype: np.dtype[np.unsignedinteger]
    rule: SplitRule
    chat: bool

    def __post_init__(self) -> None:
        self._ledger = Ledger(self.storage, self.folder)
        self._layout: Layout | None = None
        # Tokens of finished blocks, which `status` asks for again and again.
        self._counted: dict[TokenBlock, int] = {}

    @contextmanager
    def create_block(self, name: TokenBlock, most: int = 0) -> Iterator[BlockWriter]:
        """A token block to write; end the `with` body with the writer's `finish`.

        most: bytes of tokens that stay in memory, if there are no more: then `place` or `store`
        finishes the block. Otherwise it is finished when the body ends.
        """

        def open_part(stream: str) -> StreamPart:
            table = files.enter_context(self._create(self.documents_name(name, stream)))
            documents = files.enter_context(documents_writer(table, self.rule, self.chat))
            return StreamPart(table, documents)

        def open_tokens(stream: str) -> CheckedFile:
            return files.enter_context(self._create(self.tokens_name(name, stream)))

        with ExitStack() as files:
            writer = BlockWriter(open_part, open_tokens, name, self.dtype, self.rule, most)
            yield writer
        if not writer.is_held:
            self._put(name, writer.ranges(), writer.summary)

    def store(self, block: BlockWriter) -> None:
        """Finishes a block that is in memory: its tokens get files of their own."""
        for stream, part in block.parts.items():
            with self._create(self.tokens_name(block.name, stream)) as file:
                part.spill(file)
        self._put(block.name, block.ranges(), block.summary)

    def place(self, block: BlockWriter, place: Place) -> None:
        """Finishes a block that is in memory: its tokens go to where they stay in the shards."""
        assert block.summary is not None, "finish comes first"
        ranges, size = block.ranges(), self.dtype.itemsize
        streams = zip(self.rule.streams, block.summary.streams(), place.offsets, strict=True)
        for stream, sums, offset in streams:
            for cut in place.layout.slices(offset, sums.tokens):
                name, at = self.unfinished_name(cut.key), npy.HEADER_BYTES + cut.at * size
                with self.storage.open_at(name, at, new=True) as opened:
                    file = CheckedFile(name, opened, at)
                    for chunk in block.parts[stream].cut(cut.start, cut.stop):
                        file.write(chunk)
                ranges.append(file.range())
        self._put(block.name, ranges, block.summary)

    @contextmanager
    def _create(self, file: str) -> Iterator[CheckedFile]:
        with self.storage.create(file, durable=False) as opened:
            yield CheckedFile(file, opened)

    def _put(self, name: TokenBlock, ranges: list[Range], summary: BlockSummary | None) -> None:
        assert summary is not None, "finish comes first"
        self._ledger.put(BLOCKS[name.folder], name.key, ranges, summary)

    def _named(self, entry: Finished[BlockSummary]) -> Finished[BlockSummary]:
        """An entry with the names that shards have got since it was written."""
        ranges = list(entry.ranges)
        for number, part in enumerate(ranges):
            shard = unfinished_key(part.file)
            if shard is not None and self.storage.size(part.file) is None:
                self._layout = self._layout or self._ledger.get(LAYOUT, PLAN)
                if self._layout is not None:  # no shard has its name before there is one
                    ranges[number] = replace(part, file=self._layout.shard_name(shard))
        return replace(entry, ranges=tuple(ranges))

    def unfinished_name(self, key: ShardKey) -> str:
        """The file of a shard to which tokens are written before all blocks are counted."""
        return self._ledger.name(SHARDS, unfinished_stem(key), "npy")

    def read_summary(
        self, name: TokenBlock, checked: Collection[str] | None = None
    ) -> BlockSummary | None:
        """The summary of a finished block; None if it is missing, or a range is damaged.

        checked: streams whose files, and ranges in shards, are looked at; all ranges by default.
        """
        entry = self._ledger.read(BLOCKS[name.folder], name.key)
        if entry is None:
            return None
        ranges = self._named(entry).ranges
        if checked is not None:
            files, streams = (self.tokens_name, self.documents_name), self.rule.streams
            unchecked = [stream for stream in streams if stream not in checked]
            ignored = {file(name, stream) for file in files for stream in unchecked}
            ranges = tuple(part for part in ranges if checked and part.file not in ignored)
        return entry.record if self._ledger.holds(ranges) else None

    def locate(self, piece: Piece) -> Iterator[tuple[FileRange, int | None]]:
        """Where the tokens of a piece are now, and the CRC-32C of each range that is whole.

        Raises OutputError if the block is not finished any more. On object storage, where each
        request has a price, nothing is asked: there each part of a block is a file.
        """
        size = self.dtype.itemsize
        if not self.storage.on_disk:
            name = self.tokens_name(piece.block, piece.stream)
            yield FileRange(name, piece.start * size, piece.stop * size), None
            return
        entry = self._named(self._ledger.finished(BLOCKS[piece.block.folder], piece.block.key))
        sums = entry.record.streams()[: self.rule.streams.index(piece.stream)]
        position = sum(of.tokens for of in sums) * -size
        for part in entry.ranges:
            if part.file.endswith(".parquet"):
                continue
            length = part.stop - part.start
            first = max(piece.start * size - position, 0)
            stop = min(piece.stop * size - position, length)
            if first < stop:
                whole = (first, stop) == (0, length)
                place = FileRange(part.file, part.start + first, part.start + stop)
                yield place, part.crc32c if whole else None
            position += length

    def read_documents(self, name: TokenBlock, stream: str, start: int, stop: int) -> pa.Table:
        """The documents of a block's part that have tokens in `[start, stop)`."""
        # Arrow's filters could do this, but take a fifth of a second to import.
        with self.storage.open(self.documents_name(name, stream), _DOCUMENT_BYTES) as opened:
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
        self, name: TokenBlock, shuffle: Shuffle, run_bytes: int
    ) -> Iterator[RunWriter]:
        """A sorted token block to write; end the `with` body with the writer's `finish`."""
        with (
            self._create(self.tokens_name(name)) as tokens,
            self._create(self._part_name(name, "documents")) as documents,
        ):
            writer = RunWriter(
                name, tokens, documents, self.dtype, self.rule, shuffle.seed, run_bytes
            )
            yield writer
        self._put(name, [tokens.range(), documents.range()], writer.summary)

    def read_fragment(self, fragment: Fragment) -> Documents:
        """The documents of a fragment."""
        size = self.dtype.itemsize
        content = self.storage.read_range(
            self._part_name(fragment.block, "documents"), fragment.first_byte, fragment.last_byte
        )
        lengths, sources = parse_cells(content, self.rule, self.chat)
        tokens = self.storage.read_range(
            self.tokens_name(fragment.block), fragment.start * size, fragment.stop * size
        )
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Documents(np.frombuffer(tokens, self.dtype), offsets, sources)

    def tokens_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        """The file of the tokens of a block's part."""
        return self._part_name(name, "tokens", stream)

    def documents_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        """The file of the documents of a block's part."""
        return self._part_name(name, "parquet", stream)

    def _part_name(self, name: TokenBlock, ending: str, stream: str = ONE_STREAM) -> str:
        suffix = "" if stream == ONE_STREAM else f".{stream}"
        return self._ledger.name(BLOCKS[name.folder], name.key + suffix, ending)

    def finished_blocks(
        self, folder: str = "blocks", files: int = 0
    ) -> dict[tuple[int, int], tuple[int, float]]:
        """The token count and completion time of each finished block, by (file, block).

        folder: `blocks`, or `buckets`, whose blocks are those of documents in random order. files:
        how many source files there are, to list the blocks of many side by side; 0 for not known.
        """
        sizes: dict[tuple[int, int], int] = defaultdict(int)
        times: dict[tuple[int, int], float] = {}
        for name, ending, file in self._ledger.files(BLOCKS[folder], files):
            key = block_of(name)
            if key is not None and ending.endswith("tokens"):
                sizes[key] += file.size
            elif key is not None and ending == ENTRY:
                times[key] = file.modified
        if not self.storage.on_disk:
            return {key: (sizes[key] // self.dtype.itemsize, times[key]) for key in times}
        counts = {key: self._count(TokenBlock(folder, *key)) for key in times}
        return {key: (count, times[key]) for key, count in counts.items() if count is not None}

    def _count(self, name: TokenBlock) -> int | None:
        """The number of tokens of a finished block."""
        if name not in self._counted:
            with suppress(OutputError):  # a job that ends deletes it meanwhile
                if entry := self._ledger.read(BLOCKS[name.folder], name.key):
                    self._counted[name] = entry.record.counts.tokens
        return self._counted.get(name)


def block_of(key: str) -> tuple[int, int] | None:
    """The (file, block) of a key; None for a key that no block has."""
    match = _KEY.fullmatch(key)
    return match and (int(match[1]), int(match[2]))


def _statistics(parquet: pq.ParquetFile, group: int, column: str) -> Any:
    index = parquet.schema_arrow.get_field_index(column)
    return parquet.metadata.row_group(group).column(index).statistics
