"""The shuffle: the order of documents by keys, and the arithmetic of sorting more than fits.

With a seed, the documents of each stream are in the order of their keys, and not of their sources.
The rule, for programs in any language:

    key = XXH3_128bits_withSeed(FILE:ROW, seed)

FILE is the file's position in the input and ROW the row's in the file, both from 0, in decimal,
such as `3:1017`. Keys are compared as numbers of 128 bits. Equal keys, which no one will see, are
in the order of file and row. So the order is a function of the seed and of where documents come
from, and not of their content, their blocks, or how they are sorted.

Where documents are shuffled, Tokenize writes sorted token blocks:

    00003-00012.tokens       tokens, run by run, in each in the order of the documents' keys
    00003-00012.documents    their documents, in cells: Arrow record batches of source_schema and
                             `length`, one message per cell, without a schema
    00003-00012.json         the summary, with the places of all cells; written last

A run is what was sorted at once: of a block, as much as fits into memory. All keys of a cell have
the same leading bits, so a bucket's part of a run is one range of either file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from fineshards.shards.block_writer import CheckedFile, Documents, check_counts, fitting
from fineshards.shards.counts import (
    BlockSummary,
    Counts,
    FileReport,
    SortedRun,
    Sums,
    sums_by_stream,
)
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import TokenBlock, borders
from fineshards.shards.layout import Shuffle
from fineshards.shards.split_hash import row_keys
from fineshards.shards.split_rule import SplitRule
from fineshards.shards.tables.documents import source_schema

# About what a cell of a run has: enough to be worth a request.
CELL_BYTES = 256 << 10
# A bucket is sorted in memory by one worker, which a machine has two to four gigabytes for.
_BUCKET_BYTES = 256 << 20
# Sorting takes twice a bucket: so much a process of a machine with 4 GB per core can hold.
MOST_BUCKET_BYTES = 3 << 29
# So that lists with an entry per bucket stay small: 60 TB are buckets of 57 MB.
_MAX_BITS = 20
# Documents that are gathered at a time.
_CHUNK_DOCUMENTS = 1024
_LENGTH = pa.field("length", pa.int64(), nullable=False)  # in tokens


def shuffle_keys(
    seed: int, files: npt.NDArray[np.integer[Any]], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """The keys of n documents, uint64, shape (n, 2): the upper and the lower half of each.

    files, rows: shape (n,): each document's file, as a position in the input, and row.
    """
    digests = b"".join(map(xxhash.xxh3_128_digest, row_keys(files, rows), repeat(seed)))
    return np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)


def key_order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The indices that sort keys, shape (n,). Equal keys stay in the order in which they come."""
    return np.lexsort((keys[:, 1], keys[:, 0]))


@dataclass(frozen=True, slots=True)
class DocumentOrder:
    """The order of the documents of a stream.

    shuffle: None for the order of the sources. borders: how many files of the input each generation
    has, with those of the ones before; each is shuffled within itself.
    """

    shuffle: Shuffle | None
    borders: tuple[int, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> DocumentOrder:
        """The order of the documents in a dataset's streams."""
        return cls(manifest.settings.shuffle, borders(manifest.job.generations))

    def __str__(self) -> str:
        return "the source rows" if self.shuffle is None else "the keys of the shuffle"

    def follows(self, files: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> bool:
        """Whether documents from these places, shape (n,) each, are in order, all different."""
        columns: list[npt.NDArray[Any]] = [rows, files]
        if self.shuffle is not None:
            keys = shuffle_keys(self.shuffle.seed, files, rows)
            generations = np.searchsorted(self.borders, files, side="right")
            columns += [keys[:, 1], keys[:, 0], generations]
        twice = (np.diff(files) == 0) & (np.diff(rows) == 0)
        return not twice.any() and bool(np.all(np.lexsort(columns) == np.arange(len(files))))


def cell_borders(upper: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.int64]:
    """Where the upper halves of n keys change in their leading bits: (2**bits + 1,), 0 to n."""
    prefixes = upper >> np.uint64(64 - bits) if bits else np.zeros(len(upper), np.uint64)
    return np.searchsorted(prefixes, np.arange((1 << bits) + 1, dtype=np.uint64))


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """How documents are sorted. Decides no byte.

    streams: their names. bits: for each stream, the leading bits of keys that make a bucket: there
    are 2**bits.
    """

    streams: tuple[str, ...]
    bits: tuple[int, ...]

    @classmethod
    def of(
        cls,
        reports: Iterable[FileReport],
        rule: SplitRule,
        token_bytes: int,
        bucket_bytes: int | None,
        most: int | None = None,
    ) -> ShufflePlan:
        """The plan for files with these reports.

        token_bytes: of a token. bucket_bytes: of tokens per bucket at most; by default 256 MiB, and
        more where there are more than a thousand. most: that it may be by default.
        """
        sizes = [sums.tokens * token_bytes for sums in sums_by_stream(reports, rule)]
        if bucket_bytes is None:
            bucket_bytes = max(_BUCKET_BYTES, isqrt(max(sizes) * CELL_BYTES))
            bucket_bytes = min(bucket_bytes, most or bucket_bytes)
        bits = (max(-(-size // bucket_bytes) - 1, 0).bit_length() for size in sizes)
        return cls(rule.streams, tuple(min(one, _MAX_BITS) for one in bits))


# A Fragment as it crosses a shuffle.
PlainFragment = tuple[str, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A reference to documents of one run: their tokens, and bytes of its file of documents."""

    block: TokenBlock
    start: int
    stop: int
    first_byte: int
    last_byte: int

    def plain(self) -> PlainFragment:
        """The same as text and numbers, which Beam writes in a fifth of the bytes of an object."""
        block = self.block
        place = (block.folder, block.file, block.index)
        return (*place, self.start, self.stop, self.first_byte, self.last_byte)

    @classmethod
    def of(cls, plain: PlainFragment) -> Fragment:
        """The inverse of `plain`."""
        return cls(TokenBlock(*plain[:3]), *plain[3:])


@dataclass(frozen=True, slots=True)
class Bucket:
    """All documents of stream number `stream` whose keys begin with the `bits` bits `prefix`."""

    stream: int
    streams: int
    bits: int
    prefix: int

    @property
    def number(self) -> int:
        """A number that no other bucket has, also of a plan with more or fewer of them.

        So a restart with another `--memory_bytes` does not take one for another. In a stream, the
        numbers are in the order of the keys.
        """
        return ((1 << self.bits) + self.prefix) * self.streams + self.stream

    @classmethod
    def numbered(cls, number: int, streams: int) -> Bucket:
        """The inverse of `number`."""
        place, stream = divmod(number, streams)
        bits = place.bit_length() - 1
        return cls(stream, streams, bits, place - (1 << bits))


def fragments_of_run(
    block: TokenBlock, run: SortedRun, bits: int
) -> Iterator[tuple[int, Fragment]]:
    """What a run has for each bucket of its stream: (prefix, fragment), none where it has nothing.

    Where cells are larger than buckets, a fragment has documents of other buckets, too.
    """
    finer = (len(run.tokens) - 1).bit_length() - 1 - bits
    for prefix in range(1 << bits):
        first = prefix << finer if finer >= 0 else prefix >> -finer
        stop = first + (1 << max(finer, 0))
        start, end = run.documents[first], run.documents[stop]
        if start < end:
            yield prefix, Fragment(block, run.tokens[first], run.tokens[stop], start, end)


def buckets_of(summary: BlockSummary, plan: ShufflePlan) -> Iterator[tuple[int, Fragment]]:
    """The numbers of the buckets that the runs of a token block have documents for, and which."""
    streams = len(plan.streams)
    for run in summary.runs:
        stream = plan.streams.index(run.stream)
        bits = plan.bits[stream]
        for prefix, fragment in fragments_of_run(summary.place, run, bits):
            yield Bucket(stream, streams, bits, prefix).number, fragment


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
        return table.append_column(_LENGTH, pa.array(lengths))

    def take(
        self, order: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.unsignedinteger]]]:
        """The tokens of documents in an order: some of them, and their tokens, at a time."""
        sizes = [len(batch.sources) for batch in self.batches]
        offsets = [batch.offsets for batch in self.batches]
        batches = np.repeat(np.arange(len(sizes)), sizes)[order].tolist()
        starts = np.concatenate([borders[:-1] for borders in offsets])[order].tolist()
        stops = np.concatenate([borders[1:] for borders in offsets])[order].tolist()
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
        streams = self.rule.streams_of(sources)[order]
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
    schema = source_schema(rule, chat).append(_LENGTH)
    reader, batches = pa.BufferReader(content), []
    while reader.tell() < len(content):
        batches.append(pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema))
    (batch,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return batch["length"].to_numpy(), batch.select(source_schema(rule, chat).names)
