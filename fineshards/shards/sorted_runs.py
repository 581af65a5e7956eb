"""Sorted token blocks: what Tokenize writes where documents are shuffled.

    00003-00012.tokens       tokens, run by run, in each in the order of the documents' keys
    00003-00012.documents    their documents, in cells: Arrow record batches of source_schema and
                             `length`, one message per cell, without a schema
    00003-00012.json         the summary, with the places of all cells; written last

A run is what was sorted at once: of a block, as much as fits into memory. All keys of a cell have
the same leading bits, so a bucket's part of a run is one range of either file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.block_writer import (
    CheckedFile,
    Documents,
    check_counts,
    fitting,
    streams_of,
)
from fineshards.shards.counts import BlockSummary, Counts, SortedRun, Sums
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.layout import SplitRule
from fineshards.shards.shuffle_order import CELL_BYTES, cell_borders, key_order, shuffle_keys
from fineshards.shards.tables.documents import source_schema

# Documents that are gathered at a time.
_CHUNK_DOCUMENTS = 1024


@dataclass(slots=True)
class Gathered:
    """Documents in memory, to be taken in the order of their keys."""

    dtype: np.dtype[np.unsignedinteger]
    batches: list[Documents] = field(default_factory=list)
    bytes: int = 0

    def append(self, documents: Documents) -> None:
        """Adds documents: see BlockWriter.append."""
        content = fitting(documents.tokens, self.dtype)
        self.batches.append(documents._replace(tokens=content))
        self.bytes += content.nbytes + documents.sources.nbytes

    def table(self) -> pa.Table:
        """The sources of all documents, and `length`: the number of tokens of each."""
        lengths = np.concatenate([np.diff(batch.offsets) for batch in self.batches])
        table = pa.Table.from_batches([batch.sources for batch in self.batches]).combine_chunks()
        return table.append_column(
            pa.field("length", pa.int64(), nullable=False), pa.array(lengths)
        )

    def take(
        self, order: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.unsignedinteger]]]:
        """The tokens of documents in an order: some of them, and their tokens, at a time."""
        sizes = [len(batch.sources) for batch in self.batches]
        offsets = [batch.offsets for batch in self.batches]
        batches = np.repeat(np.arange(len(sizes)), sizes)[order].tolist()
        starts = np.concatenate([each[:-1] for each in offsets])[order].tolist()
        stops = np.concatenate([each[1:] for each in offsets])[order].tolist()
        # Slices, because `take` of Arrow is five times as slow.
        tokens = [batch.tokens for batch in self.batches]
        for at in range(0, len(order), _CHUNK_DOCUMENTS):
            upto = at + _CHUNK_DOCUMENTS
            places = zip(batches[at:upto], starts[at:upto], stops[at:upto], strict=True)
            parts = [tokens[batch][start:stop] for batch, start, stop in places]
            yield order[at:upto], np.concatenate(parts)


@dataclass
class RunWriter:
    """Writes a sorted token block. run_bytes: of documents that are sorted at once, in memory."""

    name: TokenBlock
    tokens: CheckedFile
    documents: CheckedFile
    dtype: np.dtype[np.unsignedinteger]
    rule: SplitRule
    seed: int
    run_bytes: int
    summary: BlockSummary | None = None
    _runs: list[SortedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._gathered = Gathered(self.dtype)
        self._sums = [[0, 0] for _ in self.rule.streams]

    def append(self, documents: Documents) -> None:
        """Appends documents: see BlockWriter.append."""
        self._gathered.append(documents)
        if self._gathered.bytes >= self.run_bytes:
            self._write_run()

    def finish(self, index: int, blocks: int, counts: Counts) -> BlockSummary:
        """As `BlockWriter.finish`."""
        if self._gathered.batches:
            self._write_run()
        documents, tokens = (sum(sums[which] for sums in self._sums) for which in (0, 1))
        check_counts(self.name, counts, documents, tokens)
        test = Sums(*self._sums[0]) if self.rule.by_document else None
        self.summary = BlockSummary(self.name.file, index, blocks, counts, test, (*self._runs,))
        return self.summary

    def _write_run(self) -> None:
        gathered, self._gathered = self._gathered, Gathered(self.dtype)
        table = gathered.table()
        if not len(table):
            return
        keys = shuffle_keys(self.seed, table["file"].to_numpy(), table["row"].to_numpy())
        order = key_order(keys)
        (sources,) = table.to_batches()
        streams = streams_of(sources, self.rule)[order]
        for number, stream in enumerate(self.rule.streams):
            chosen = order[streams == number]
            if not len(chosen):
                continue
            first_token = self.tokens.size // self.dtype.itemsize
            for _, tokens in gathered.take(chosen):
                self.tokens.write(tokens)
            (of_stream,) = table.take(pa.array(chosen)).combine_chunks().to_batches()
            ends = np.concatenate([[0], np.cumsum(of_stream["length"].to_numpy())])
            cells = int(ends[-1]) * self.dtype.itemsize // CELL_BYTES
            borders = cell_borders(keys[chosen, 0], max(cells, 1).bit_length() - 1)
            places = [self.documents.size]
            for first, stop in pairwise(borders.tolist()):
                if first < stop:
                    self.documents.write(of_stream.slice(first, stop - first).serialize())
                places.append(self.documents.size)
            token_places = (ends[borders] + first_token).tolist()
            self._runs.append(SortedRun(stream, tuple(token_places), tuple(places)))
            self._sums[number][0] += len(chosen)
            self._sums[number][1] += int(ends[-1])


def parse_cells(
    content: bytes, rule: SplitRule, chat: bool
) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
    """The documents of neighbouring cells: the number of tokens of each, and their sources."""
    length = pa.field("length", pa.int64(), nullable=False)  # in tokens
    schema = source_schema(rule, chat).append(length)
    reader, batches = pa.BufferReader(content), []
    while reader.tell() < len(content):
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema))
    (batch,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return batch["length"].to_numpy(), batch.select(source_schema(rule, chat).names)
