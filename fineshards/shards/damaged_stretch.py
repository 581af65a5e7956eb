"""Stretches: neighbouring shards of a stream that are damaged, and the documents that they hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.block_writer import streams_of
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.layout import ONE_STREAM, SplitRule, table_name
from fineshards.shards.shuffle_order import DocumentOrder
from fineshards.shards.tables.documents import DocumentPiece

_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Damage:
    """Neighbouring damaged shards of a stream.

    stream: its name. first, last: (file, row) of the first and the last document with tokens in
    them; None at the ends of the stream. after, before: whether the first, or the last, is a
    neighbour that has no tokens in them itself. skip: tokens of the first document that lie before
    these shards. first_document: number in the stream of the document of the first token. files:
    positions of the source files that may have documents in them.
    """

    shards: tuple[ShardRecord, ...]
    rule: SplitRule
    order: DocumentOrder
    stream: str
    first: _Place | None
    last: _Place | None
    after: bool
    before: bool
    skip: int
    first_document: int
    files: tuple[int, ...]

    def in_stream(self, sources: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which documents (`source_schema`) are in the stream: shape (n,)."""
        number = self.rule.streams.index(self.stream)
        found: npt.NDArray[np.bool_] = streams_of(sources, self.rule) == number
        return found

    def holds(self, sources: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which documents (`source_schema`) have tokens in these shards: shape (n,)."""
        if not self.shards:
            return np.zeros(len(sources), np.bool_)
        files = sources["file"].to_numpy().astype(np.int64)
        rows = sources["row"].to_numpy()
        found = self.order.between(files, rows, self.first, self.last)
        found &= self.in_stream(sources)
        for place, is_left_out in ((self.first, self.after), (self.last, self.before)):
            if place is not None and is_left_out:
                found &= (files != place[0]) | (rows != place[1])
        return found


def stretches(dataset: Dataset, damaged: Collection[str]) -> Iterator[Damage]:
    """The stretches of a dataset. damaged: the names of its damaged files."""
    manifest, run = dataset.manifest, list[int]()
    rule = manifest.settings.split
    for position, shard in enumerate(manifest.shards):
        new_stream = rule.by_document and run and manifest.shards[run[-1]].split != shard.split
        is_damaged = not {shard.name, table_name(shard.name)}.isdisjoint(damaged)
        if run and (new_stream or not is_damaged):
            yield _stretch(dataset, damaged, run)
            run = []
        if is_damaged:
            run.append(position)
    if run:
        yield _stretch(dataset, damaged, run)


def _stretch(dataset: Dataset, damaged: Collection[str], run: list[int]) -> Damage:
    manifest = dataset.manifest
    shards, rule = manifest.shards, manifest.settings.split
    numbers = {file.name: file.index for file in manifest.files}

    def table_is_whole(position: int) -> bool:
        return table_name(shards[position].name) not in damaged

    def in_stream(position: int) -> bool:
        if not 0 <= position < len(shards):
            return False
        return not rule.by_document or shards[position].split == shards[run[0]].split

    def place(piece: DocumentPiece) -> _Place:
        return numbers[piece.file], piece.row

    first = last = None
    skip, after, before = 0, False, False
    if table_is_whole(run[0]):
        piece = dataset.table(run[0]).piece(0)
        first, skip = place(piece), piece.start
    elif in_stream(run[0] - 1):
        # Neighbours are whole, or they would be in the stretch.
        piece = dataset.table(run[0] - 1).piece(-1)
        first = place(piece)
        # The last document of a shard ends there, or goes on in the next.
        before_it = shards[run[0] - 1]
        after = before_it.first_document + before_it.pieces == shards[run[0]].first_document
        skip = 0 if after else piece.start + piece.length
    if table_is_whole(run[-1]):
        last = place(dataset.table(run[-1]).piece(-1))
    elif in_stream(run[-1] + 1):
        piece = dataset.table(run[-1] + 1).piece(0)
        last, before = place(piece), piece.start == 0
    return Damage(
        tuple(shards[position] for position in run),
        rule,
        DocumentOrder.of(manifest),
        shards[run[0]].split if rule.by_document else ONE_STREAM,
        first,
        last,
        after,
        before,
        skip,
        shards[run[0]].first_document,
        tuple(_files(dataset, run, all(map(table_is_whole, run)), first, last)),
    )


def _files(
    dataset: Dataset,
    run: list[int],
    tables_are_whole: bool,
    first: _Place | None,
    last: _Place | None,
) -> Iterator[int]:
    """The source files that may have documents in shards."""
    manifest = dataset.manifest
    if tables_are_whole:
        found = {path for each in run for path in dataset.table(each).sums_by_file()}
        yield from (file.index for file in manifest.files if file.name in found)
        return
    begin = 0 if first is None else first[0]
    end = len(manifest.files) - 1 if last is None else last[0]
    if manifest.settings.shuffle is not None:
        # Documents of a generation are all over it.
        ends = [0, *DocumentOrder.of(manifest).borders]
        begin = max(each for each in ends if each <= begin)
        end = min(each for each in ends if each > end) - 1
    for report in manifest.reports:
        if begin <= report.file <= end and report.counts.documents:
            yield report.file


def nothing(manifest: Manifest) -> Damage:
    """A stretch without shards, to read source files for their rejected rows."""
    rule, order = manifest.settings.split, DocumentOrder.of(manifest)
    return Damage((), rule, order, rule.streams[0], None, None, False, False, 0, 0, ())


def offset_of(manifest: Manifest, stretch: Damage) -> int:
    """Where the first document of a stretch begins, in global order."""
    if not stretch.shards:
        return 0
    layout, shard = manifest.layout, stretch.shards[0]
    begin = 0 if shard.split == "test" else layout.test_tokens
    return begin + layout.begin(shard.key) - stretch.skip
