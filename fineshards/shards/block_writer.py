"""Writes a token block: appends documents to the parts of their streams."""

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import FineshardsError, OutputError
from fineshards.shards.counts import BlockSummary, Counts, Sums
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.ledger import Range
from fineshards.shards.split_rule import SplitRule
from fineshards.shards.tables.documents import source_schema
from fineshards.storage.checksums import write_with_checksum

# Documents per row group, which are kept in memory until it is written: some megabytes.
_ROW_GROUP_DOCUMENTS = 1 << 16


def documents_schema(rule: SplitRule, chat: bool = False) -> pa.Schema:
    """The columns of a token block's documents.

    document: number within the block's part. [offset, end): its tokens within the part, including
    EOT. The rest is `source_schema`.
    """
    numbers = [pa.field(name, pa.int64(), nullable=False) for name in ("document", "offset", "end")]
    return pa.schema([*numbers, *source_schema(rule, chat)])


class Documents(NamedTuple):
    """n documents: their tokens in one array, n+1 offsets into it, n rows of `source_schema`."""

    tokens: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.int64]
    sources: pa.RecordBatch


class CheckedFile(io.RawIOBase):
    """A file that is being written from `start`, with the size and the checksum of what was."""

    def __init__(self, name: str, target: BinaryIO, start: int = 0) -> None:
        self._name = name
        self._target = target
        self._start = start
        self.size = self.checksum = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Appends bytes."""
        content = np.asarray(memoryview(data)).view(np.uint8)
        self.checksum = write_with_checksum(content, self._target, self.checksum)
        self.size += len(content)
        return len(content)

    def range(self) -> Range:
        """All that was written."""
        return Range(self._name, self._start, self._start + self.size, self.checksum)


@dataclass
class StreamPart:
    """One stream's part of a token block: tokens in memory, or in `file` since `spill`.

    rows: writes to `table`, the file of the documents.
    """

    table: CheckedFile
    rows: pq.ParquetWriter
    file: CheckedFile | None = None
    tokens: int = 0
    documents: int = 0
    _held: list[npt.NDArray[np.unsignedinteger]] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)  # of these, in tokens
    _pending: list[pa.Table] = field(default_factory=list)
    _pending_documents: int = 0
    _end: int = 0

    def write_tokens(self, tokens: npt.NDArray[np.unsignedinteger]) -> None:
        """Appends tokens; `add_documents` says whose they are."""
        if self.file is None:
            self._held.append(tokens)
            self._ends.append(self.tokens + len(tokens))
        else:
            self.file.write(tokens)
        self.tokens += len(tokens)

    def spill(self, file: CheckedFile) -> None:
        """Moves all tokens to a file, where more follow."""
        self.file = file
        for tokens in self._held:
            file.write(tokens)
        self._held = []

    def cut(self, start: int, stop: int) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Tokens `[start, stop)`, which are in memory."""
        for number in range(bisect_right(self._ends, start), bisect_left(self._ends, stop) + 1):
            first = self._ends[number] - len(self._held[number])
            yield self._held[number][max(start - first, 0) : stop - first]

    def ranges(self) -> list[Range]:
        """All of its files."""
        return [file.range() for file in (self.table, self.file) if file is not None]

    def add_documents(self, lengths: npt.NDArray[np.int64], sources: pa.RecordBatch) -> None:
        """Appends documents: their lengths and sources (`source_schema`)."""
        ends = np.cumsum(lengths) + self._end
        numbers = np.arange(self.documents, self.documents + len(lengths), dtype=np.int64)
        table = pa.table([numbers, ends - lengths, ends, *sources.columns], schema=self.rows.schema)
        self._pending.append(table)
        self._end += int(lengths.sum())
        self.documents += len(lengths)
        self._pending_documents += len(lengths)
        if self._pending_documents >= _ROW_GROUP_DOCUMENTS:
            self.write_documents()

    def write_documents(self) -> None:
        """Writes the rows of documents that are still in memory."""
        if self._pending:
            table = pa.concat_tables(self._pending)
            self.rows.write_table(table, row_group_size=_ROW_GROUP_DOCUMENTS)
            self._pending = []
            self._pending_documents = 0


@dataclass
class BlockWriter:
    """Appends documents to a token block that is being written.

    open_part: opens the part of a stream; open_tokens: a file for its tokens. most: bytes of tokens
    that stay in memory, if there are no more. parts: of the streams with documents in this block.
    """

    open_part: Callable[[str], StreamPart]
    open_tokens: Callable[[str], CheckedFile]
    name: TokenBlock
    dtype: np.dtype[np.unsignedinteger]
    rule: SplitRule
    most: int = 0
    parts: dict[str, StreamPart] = field(default_factory=dict)
    summary: BlockSummary | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens appended so far."""
        return sum(part.tokens for part in self.parts.values())

    def append(self, documents: Documents) -> None:
        """Appends documents; raises OutputError for a token id that the dtype cannot hold."""
        tokens, offsets, sources = documents
        content = fitting(tokens, self.dtype)
        streams = self.rule.streams_of(sources)
        # Neighbours of one stream are written together: tokens are not copied to sort them.
        borders = np.flatnonzero(np.diff(streams)) + 1
        firsts = [0, *borders.tolist()] if len(streams) else []
        for first, stop in zip(firsts, [*firsts[1:], len(streams)], strict=False):
            part = self._part(int(streams[first]))
            part.write_tokens(content[offsets[first] : offsets[stop]])
        for number in np.unique(streams).tolist():
            chosen = streams == number
            self._part(number).add_documents(
                np.diff(offsets)[chosen], sources.filter(pa.array(chosen))
            )
        if not self.is_held:
            for stream, part in self.parts.items():
                if part.file is None:
                    part.spill(self.open_tokens(stream))

    @property
    def bytes(self) -> int:
        """The size of its tokens."""
        return self.tokens * self.dtype.itemsize

    @property
    def is_held(self) -> bool:
        """Whether all tokens are in memory."""
        return 0 < self.most >= self.bytes

    def _part(self, number: int) -> StreamPart:
        stream = self.rule.streams[number]
        if stream not in self.parts:
            self.parts[stream] = self.open_part(stream)
        return self.parts[stream]

    def finish(self, index: int, blocks: int, counts: Counts) -> BlockSummary:
        """Writes what is left; returns the summary of block `index` of `blocks`."""
        documents = sum(part.documents for part in self.parts.values())
        check_counts(self.name, counts, documents, self.tokens)
        of_streams = {stream: self.parts.get(stream) for stream in self.rule.streams}
        self.parts = {stream: part for stream, part in of_streams.items() if part is not None}
        for part in self.parts.values():
            part.write_documents()
        test = Sums(0, 0) if self.rule.by_document else None
        if "test" in self.parts:
            test = Sums(self.parts["test"].documents, self.parts["test"].tokens)
        self.summary = BlockSummary(self.name.file, index, blocks, counts, test)
        return self.summary

    def ranges(self) -> list[Range]:
        """All files of its parts, once they are closed, in the order of the streams."""
        return [range_ for part in self.parts.values() for range_ in part.ranges()]


def fitting(
    tokens: npt.NDArray[np.unsignedinteger], dtype: np.dtype[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """Tokens in the dtype of the shards; raises OutputError for an id that it cannot hold."""
    if dtype.itemsize < tokens.itemsize and len(tokens):
        highest = int(tokens.max())
        if highest > np.iinfo(dtype).max:
            raise OutputError(
                f"the tokenizer returned the id {highest}, which {dtype.name} cannot hold, "
                "although its vocabulary says that every id fits. Use --dtype uint32, and please "
                "report it."
            )
    return np.ascontiguousarray(tokens, dtype=dtype)


def check_counts(block: TokenBlock, counts: Counts, documents: int, tokens: int) -> None:
    """Raises FineshardsError unless a token block holds as many documents and tokens as counted."""
    if (counts.documents, counts.tokens) != (documents, tokens):
        raise FineshardsError(
            f"block {block.index} of file {block.file} holds {documents} documents and {tokens} "
            f"tokens, expected {counts.documents} and {counts.tokens}. This is a bug in "
            "fineshards; please report it."
        )


def documents_writer(opened: CheckedFile, rule: SplitRule, chat: bool) -> pq.ParquetWriter:
    """A document file to write. chat: whether the documents are conversations."""
    # The file is written once and soon read once or twice, so speed matters more than size.
    # TokenBlocks.read_documents skips row groups by these statistics.
    return pq.ParquetWriter(
        opened,
        documents_schema(rule, chat),
        compression="lz4",
        use_dictionary=False,
        write_statistics=["offset", "end"],
        write_page_checksum=True,
    )
