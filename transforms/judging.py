"""What the stages of a recipe do to blocks, ranges of keys, and files. No Beam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.commands.source_rows import batch_of
from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator
from fineshards.curation.step import Keyed, KeyedSpans, Keys
from fineshards.shards.decisions import SCHEMA, Decisions, decisions_name, merged, to_bytes
from fineshards.shards.judged import JudgedBlock, Range, Stage, earlier_decisions
from fineshards.shards.marks import (
    EDGE,
    Records,
    by_file,
    components,
    edges,
    file_of,
    is_external,
    key_dtype,
    key_records,
    mark,
    mark_dtype,
    merge_marks,
    positions,
    row_of,
    split,
)
from fineshards.shards.records import Block, MetadataFile, SourceFile
from fineshards.shards.rejected import Rejected
from fineshards.sources.reading import read_block
from fineshards.sources.rows import Rows
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.transforms.work import Work

# The name of what `components` marks, which is not a range of keys.
_OF_COMPONENTS = (0, 0)
# Files whose marks are kept in memory: a worker goes from block to block of the same file.
_FILES_KEPT = 4


class Judging:
    """The stages of a job's recipe, in one process."""

    def __init__(self, work: Work) -> None:
        assert work.settings.recipe is not None
        self._work = work
        self._recipe = work.settings.recipe
        self._marked = lru_cache(_FILES_KEPT)(self._read_marked)

    @cached_property
    def curator(self) -> Curator:
        """The steps, checked against the job's record."""
        return Curator.of(self._recipe)

    def judge_block(self, file: SourceFile, block: Block, number: int) -> tuple[JudgedBlock, bool]:
        """Judges the rows of a block in a stage that ends with a keyed step.

        Returns the judged block, and whether an earlier run had judged it.
        """
        stage, keyed = self._stage(number), self.curator.keyed(number)
        found = stage.read_block(block, _key_type(keyed))
        if found is not None:
            return JudgedBlock(file, block, found), True
        self._work.checkpoints.stop_if_replaced(file.index)
        earlier = earlier_decisions(self._work.checkpoints, block, number, self._marked)
        tables: list[pa.Table] = []
        keys: list[Keys] = []
        rows_of_keys: list[npt.NDArray[np.int64]] = []
        rejected = Rejected(file, self._work.max_bad_rows)
        for rows in read_block(file, self._work.settings.columns, block):
            rejected.add(rows.bad)
            judged = self.curator.judge(batch_of(rows.with_text(), file), number, earlier)
            tables += judged.dropped
            assert judged.keys is not None
            keys.append(judged.keys)
            rows_of_keys.append(judged.kept.rows[judged.keys.owners])
        records = _key_records(keyed, file, keys, rows_of_keys)
        stage.write_block(block, tables, records)
        return JudgedBlock(file, block, len(records)), False

    def last_stage(self, read: Iterable[Rows], file: SourceFile, block: Block) -> Iterator[Rows]:
        """The rows of a block that all steps keep, with the texts that are tokenized.

        Rows that are dropped are counted in `dropped` of the rows they came with. Stores the
        decisions of the last stage when the rows are read to their end.
        """
        last = self.curator.stages - 1
        earlier = earlier_decisions(self._work.checkpoints, block, last, self._marked)
        tables: list[pa.Table] = []
        for rows in read:
            found = rows.with_text()
            judged = self.curator.judge(batch_of(found, file), last, earlier)
            tables += judged.dropped
            decided = Decisions(merged([earlier.table, *judged.dropped]))
            yield _survivors(rows, found, judged.kept, decided)
        self._stage(last).write_block(block, tables, None)

    def has_last_stage(self, block: Block) -> bool:
        """Whether the decisions of the last stage about a block are stored, undamaged."""
        return self._stage(self.curator.stages - 1).read_block(block, None) is not None

    def split_keys(
        self, judged: JudgedBlock, number: int, partitions: int, inline: bool
    ) -> list[tuple[int, Range]]:
        """The keys of a block by range of keys: (partition, where its keys are, or the keys)."""
        block, key_type = judged.block, _key_type(self.curator.keyed(number))
        keys = self._stage(number).read_keys(block, key_type)
        found, start = [], 0
        for partition, part in enumerate(split(keys, partitions)):
            stop = start + len(part)
            if len(part):
                content = part.tobytes() if inline else None
                found.append((partition, (block.file, block.index, start, stop, content)))
            start = stop
        return found

    def mark_keys(
        self, number: int, partition: int, partitions: int, ranges: Sequence[Range], inline: bool
    ) -> list[tuple[int, Range]]:
        """Finds the keys of a range of keys that an earlier document has.

        Returns (file, where its marks are, or the marks). With the rule `components`, (0, links).
        """
        stage, keyed = self._stage(number), self.curator.keyed(number)
        stored = stage.read_marks(partition, partitions)
        if stored is None:
            key_type = _key_type(keyed)
            keys = _joined([stage.keys_of(each, key_type) for each in ranges], key_type)
            if _joins(keyed):
                made = edges(keys)
                stored = [(0, 0, len(made))]
            else:
                made = mark(keys)
                stored = _file_ranges(made)
            stage.write_marks(partition, partitions, made, stored)
        return _ranges(stage, partition, partitions, stored, _mark_type(keyed) if inline else None)

    def join_components(
        self, number: int, ranges: Sequence[Range], inline: bool
    ) -> list[tuple[int, Range]]:
        """Finds the components of all links; returns what `mark_keys` does."""
        stage, dtype = self._stage(number), mark_dtype()
        partition, partitions = _OF_COMPONENTS
        stored = stage.read_marks(partition, partitions)
        if stored is None:
            marks = components(_joined([stage.marks_of(each, EDGE) for each in ranges], EDGE))
            stored = _file_ranges(marks)
            stage.write_marks(partition, partitions, marks, stored)
        return _ranges(stage, partition, partitions, stored, dtype if inline else None)

    def write_marked(self, number: int, file: int, ranges: Sequence[Range]) -> None:
        """Stores the marks of a source file as decisions."""
        stage, keyed = self._stage(number), self.curator.keyed(number)
        if stage.has_marked(file):
            return
        spans = isinstance(keyed, KeyedSpans)
        marks = merge_marks([stage.marks_of(each, mark_dtype(spans)) for each in ranges], spans)
        step = self.curator.number_of_keyed(number)
        stage.write_marked(file, _marked_decisions(marks, step, keyed.reason))

    def write_decisions(self, file: int) -> MetadataFile | None:
        """Writes all decisions about a source file; None if there are none."""
        checkpoints = self._work.checkpoints
        blocks = checkpoints.read_blocks(file) or []
        tables = []
        for number in range(self.curator.stages):
            stage = self._stage(number)
            tables += [stage.decisions(block) for block in blocks]
            if number + 1 < self.curator.stages:
                tables.append(stage.marked(file))
        table = merged(tables)
        if not len(table):
            return None
        name, content = decisions_name(file), to_bytes(table)
        checkpoints.storage.write(name, content)
        return MetadataFile(name, len(content), checksum_to_base64(crc32c(content)))

    def _stage(self, number: int) -> Stage:
        return Stage(self._work.checkpoints, number)

    def _read_marked(self, number: int, file: int) -> pa.Table:
        return self._stage(number).marked(file)


def survivors(rows: Rows, kept: Batch) -> Rows:
    """The rows of a batch that steps have kept, with the texts that they made."""
    there = rows.filter(np.isin(rows.numbers, kept.rows), rows.bad)
    return replace(there, texts=kept.texts)


def _survivors(read: Rows, found: Rows, kept: Batch, decided: Decisions) -> Rows:
    """As `survivors`, with the counts of the rows that are left out."""
    gone = decided.are_dropped(found.numbers)
    lengths = pc.binary_length(found.texts).to_numpy(zero_copy_only=False)
    dropped = decided.count_dropped(found.numbers[gone], lengths[gone].astype(np.int64))
    return replace(survivors(found, kept), nulls=read.texts.null_count, dropped=dropped)


def _key_type(keyed: Keyed) -> np.dtype[np.void]:
    return key_dtype(keyed.KEY_BITS, isinstance(keyed, KeyedSpans))


def _mark_type(keyed: Keyed) -> np.dtype[np.void]:
    return EDGE if _joins(keyed) else mark_dtype(isinstance(keyed, KeyedSpans))


def _key_records(
    keyed: Keyed, file: SourceFile, keys: Sequence[Keys], rows: Sequence[npt.NDArray[np.int64]]
) -> Records:
    """The keys of several batches, whose documents are in the given rows, as sorted records."""
    if not keys:
        return np.empty(0, _key_type(keyed))
    spans = [each.spans for each in keys if each.spans is not None]
    return key_records(
        np.concatenate([each.keys for each in keys]),
        positions(file.index, np.concatenate(rows)),
        np.concatenate(spans) if spans else None,
    )


def _joined(records: Sequence[Records], dtype: np.dtype[np.void]) -> Records:
    return np.concatenate([np.empty(0, dtype), *records])


def _joins(keyed: Keyed) -> bool:
    """Whether documents that are linked in several steps are duplicates too."""
    return getattr(keyed, "rule", "earlier") == "components"


def _ranges(
    stage: Stage,
    partition: int,
    partitions: int,
    stored: Sequence[tuple[int, int, int]],
    inline: np.dtype[np.void] | None,
) -> list[tuple[int, Range]]:
    """Stored marks by file. inline: their type, if the marks themselves are to travel."""
    found: list[tuple[int, Range]] = []
    for file, start, stop in stored:
        place: Range = (partition, partitions, start, stop, None)
        if inline is not None:
            place = (*place[:4], stage.marks_of(place, inline).tobytes())
        found.append((file, place))
    return found


def _file_ranges(marks: Records) -> list[tuple[int, int, int]]:
    """Where the marks of each file are in sorted marks."""
    found, start = [], 0
    for file, part in by_file(marks):
        found.append((file, start, start + len(part)))
        start += len(part)
    return found


def _marked_decisions(marks: Records, step: int, reason: str) -> pa.Table:
    """Sorted marks of one file as decisions of a step."""
    count, witness = len(marks), marks["witness"]
    files = file_of(witness).astype(np.int32)
    files[is_external(witness)] *= -1
    files[is_external(witness)] -= 1
    spans = marks["span"] if "span" in (marks.dtype.names or ()) else None
    columns = [
        pa.array(row_of(marks["position"])),
        pa.array(np.full(count, step, np.int16)),
        pa.array([reason] * count, pa.string()),
        pa.nulls(count, pa.uint32()) if spans is None else pa.array(spans),
        pa.array(files),
        pa.array(row_of(witness)),
    ]
    return pa.table(columns, schema=SCHEMA)
