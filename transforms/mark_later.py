"""MarkLater: which documents have a key that an earlier document has.

All deduplication is this one step, with other keys: see docs/curation.md. Modules in this
folder do without `from __future__ import annotations`: see plan.py.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from fineshards.shards.job.curated_files import keys_name
from fineshards.shards.job.recipe_record import StepRecord
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.tables.verdicts import WANTED, JudgedBlock, KeyFile, Slice
from fineshards.storage.checksums import checksum_from_base64
from fineshards.transforms.run_tasks import JobStep, RunTasks, StepMetrics, listed
from fineshards.worker.tasks import (
    Task,
    compare_documents,
    index_keys,
    join_components,
    judge_block,
    mark_keys,
    split_keys,
    write_contents,
    write_marked,
)
from fineshards.worker.work import Work

METRICS = StepMetrics("mark_later")
# Bytes of keys that a worker compares at a time, by default; it needs about four times as much.
_RANGE_BYTES, _MOST_RANGE_BYTES = 64 << 20, 512 << 20
_MANY_RANGES = 1 << 10
# About what a key takes, to count those of earlier generations and to size ranges.
_KEY_BYTES = 16
_log = logging.getLogger("fineshards.worker")


class MarkLater(JobStep):
    """From (file, block) pairs to the same pairs, once it is known which documents to drop.

    Each block is judged by the steps before the keyed one, and gives the keys of the documents that
    are left. Keys are grouped by ranges, compared, and what was found goes back by file. Texts and
    tokens cross no shuffle, and keys only where the runner's shuffle is not in memory.
    """

    def __init__(self, work: Work, stage: int) -> None:
        super().__init__(work)
        self._stage = stage

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        work, stage = self._work, self._stage
        judged = (
            blocks
            | "Spread" >> beam.Reshuffle()
            | "Judge" >> beam.ParDo(JudgeBlocks(METRICS, work, stage))
            | "Judged" >> beam.Map(_first)
        )
        keys = judged | "Keys" >> beam.Map(_keys)
        step = _step(work, stage)
        if step.use == "seen_in" or work.earlier:
            job = blocks.pipeline | "Job" >> beam.Create([work])
            keys = (keys, self._others(job, step)) | "AllFiles" >> beam.Flatten()
        partitions = beam.pvalue.AsSingleton(
            keys
            | "Count" >> beam.Map(_count)
            | "AllKeys" >> beam.CombineGlobally(sum)
            | "Partitions" >> beam.Map(_partitions, work)
        )
        found = (
            keys
            | "Ranges" >> beam.ParDo(_Split(METRICS, work, stage), partitions)
            | "EachRange" >> beam.FlatMap(_each)
            | "GroupKeys" >> beam.GroupByKey()
            | "ListedKeys" >> beam.MapTuple(listed)
            | "Mark" >> beam.ParDo(_MarkKeys(METRICS, work, stage), partitions)
            | "EachMarks" >> beam.FlatMap(_each)
        )
        if step.verifies:
            pairs, wanted = found | "ByKind" >> beam.Partition(_is_wanted, 2)
            contents = (
                wanted
                | "GroupWanted" >> beam.GroupByKey()
                | "ListedWanted" >> beam.MapTuple(listed)
                | "Contents" >> beam.ParDo(_Contents(METRICS, work, stage))
                | "EachContents" >> beam.FlatMap(_each)
            )
            found = (
                (pairs, contents)
                | "PairsAndContents" >> beam.Flatten()
                | "GroupPairs" >> beam.GroupByKey()
                | "ListedPairs" >> beam.MapTuple(listed)
                | "Compare" >> beam.ParDo(_Compare(METRICS, work, stage))
                | "EachCompared" >> beam.FlatMap(_each)
            )
        if step.rule == "components":
            found = (
                found
                | "GroupLinks" >> beam.GroupByKey()
                | "ListedLinks" >> beam.MapTuple(listed)
                | "Join" >> beam.ParDo(_Join(METRICS, work, stage))
                | "EachJoined" >> beam.FlatMap(_each)
            )
        # The blocks of a file are read on when all its marks are there.
        return (
            (found, judged | "ByFile" >> beam.Map(_by_file))
            | "MarksAndBlocks" >> beam.Flatten()
            | "GroupFiles" >> beam.GroupByKey()
            | "ListedFiles" >> beam.MapTuple(listed)
            | "OfThisJob" >> beam.FlatMap(_file_and_marks)
            | "Marked" >> beam.ParDo(_Store(METRICS, work, stage))
            | "Blocks" >> beam.FlatMap(_pairs)
        )

    def _others(self, job: beam.PCollection, step: StepRecord) -> beam.PCollection:
        """The keys of documents that are not read: of other datasets, of earlier generations."""
        if step.use != "seen_in":
            kept = job | "Kept" >> beam.FlatMap(_kept, self._stage)
            return kept | "SpreadKept" >> beam.Reshuffle()
        return (
            job
            | "Indexes" >> beam.FlatMap(_indexes, self._stage)
            | "SpreadIndexes" >> beam.Reshuffle()
            | "Index" >> beam.ParDo(_Index(METRICS, self._work, self._stage))
        )


def _first(result: tuple[JudgedBlock, bool]) -> JudgedBlock:
    return result[0]


def _keys(judged: JudgedBlock) -> KeyFile:
    return judged.keys


def _count(keys: KeyFile) -> int:
    return keys.count


def _kept(work: Work, stage: int) -> Iterator[KeyFile]:
    """The keys of the documents of earlier generations."""
    assert work.settings.recipe is not None
    step = work.settings.recipe.keyed[stage]
    earlier = work.earlier.manifest(work.checkpoints.storage)
    # A file without rows has none.
    names = {keys_name(file.index, step) for file in earlier.files}
    for file in earlier.metadata:
        if file.name in names:
            checksum = checksum_from_base64(file.crc32c)
            yield KeyFile(file.name, file.bytes // _KEY_BYTES, checksum)


def _step(work: Work, stage: int) -> StepRecord:
    """The keyed step that ends a stage."""
    recipe = work.settings.recipe
    assert recipe is not None
    return recipe.steps[recipe.keyed[stage]]


def _indexes(work: Work, stage: int) -> Iterator[SourceFile]:
    """The files that a step `seen_in` looks documents up in."""
    recipe = work.settings.recipe
    assert recipe is not None
    return (file for step, file in recipe.indexes if step == recipe.keyed[stage])


def range_count(keys: int, range_bytes: int | None) -> int:
    """The number of ranges of keys, a power of two. It decides no byte of the result.

    Beyond a thousand ranges they grow, up to half a gigabyte: each block has a part in each range,
    and small parts cost more to shuffle than their bytes do.
    """
    size = keys * _KEY_BYTES
    if range_bytes is None:
        range_bytes = max(_RANGE_BYTES, min(size // _MANY_RANGES, _MOST_RANGE_BYTES))
    return 1 << max(math.ceil(size / range_bytes) - 1, 0).bit_length()


def _partitions(keys: int, work: Work) -> int:
    partitions = range_count(keys, work.memory_bytes)
    _log.info("deduplication: %s keys in %d ranges", f"{keys:,}", partitions)
    return partitions


def _each(found: list[tuple[int, Slice]]) -> Iterator[tuple[int, Slice]]:
    return iter(found)


def _is_wanted(found: tuple[int, Slice], _: int) -> int:
    return int(found[1][0] == WANTED)


def _by_file(judged: JudgedBlock) -> tuple[int, tuple[SourceFile, Block]]:
    return judged.file.index, (judged.file, judged.block)


def _file_and_marks(
    group: tuple[int, list[Any]],
) -> Iterator[tuple[SourceFile, list[Block], list[Slice]]]:
    """A file with its blocks in order, and its marks; nothing for a file of an earlier job."""
    pairs = [each for each in group[1] if isinstance(each[0], SourceFile)]
    ranges = [each for each in group[1] if not isinstance(each[0], SourceFile)]
    if pairs:
        blocks = sorted((block for _, block in pairs), key=lambda block: block.index)
        yield pairs[0][0], blocks, list(_in_order(ranges))


def _in_order(ranges: Iterable[Slice]) -> tuple[Slice, ...]:
    """Ranges in the order of their places, so that a task that is done again is the same one."""
    return tuple(sorted(ranges, key=lambda each: each[:4]))


def _pairs(found: tuple[SourceFile, tuple[Block, ...]]) -> Iterator[tuple[SourceFile, Block]]:
    file, blocks = found
    return ((file, block) for block in blocks)


class _OfStage(RunTasks):
    def __init__(self, metrics: StepMetrics, work: Work, stage: int) -> None:
        super().__init__(metrics, work)
        self._stage = stage


class JudgeBlocks(_OfStage):
    """From (file, block) pairs to judged blocks."""

    def task(self, element: tuple[SourceFile, Block]) -> Task:
        return judge_block(*element, self._stage)

    def counts(
        self, element: tuple[SourceFile, Block], result: tuple[JudgedBlock, bool]
    ) -> dict[str, int]:
        judged, reused = result
        return {"blocks_in": 1, "blocks_reused": int(reused), "keys_out": judged.keys.count}


class _Index(_OfStage):
    def task(self, file: SourceFile) -> Task:
        return index_keys(self._stage, file)

    def counts(self, file: SourceFile, keys: KeyFile) -> dict[str, int]:
        return {"indexes_in": 1, "keys_of_indexes": keys.count}


class _Split(_OfStage):
    def task(self, keys: KeyFile, partitions: int) -> Task:
        return split_keys(self._stage, keys, partitions)

    def counts(self, keys: KeyFile, found: list[tuple[int, Slice]]) -> dict[str, int]:
        return {"ranges_out": len(found)}


class _MarkKeys(_OfStage):
    def task(self, group: tuple[int, list[Slice]], partitions: int) -> Task:
        return mark_keys(self._stage, group[0], partitions, _in_order(group[1]))

    def counts(
        self, group: tuple[int, list[Slice]], found: list[tuple[int, Slice]]
    ) -> dict[str, int]:
        marked = sum(stop - start for _, (_, _, start, stop, _) in found)
        return {"partitions_in": 1, "bytes_marked": marked}


class _Contents(_OfStage):
    def task(self, group: tuple[int, list[Slice]]) -> Task:
        return write_contents(self._stage, group[0], _in_order(group[1]))

    def counts(self, group: object, found: list[tuple[int, Slice]]) -> dict[str, int]:
        return {"bytes_wanted": sum(stop - start for _, (_, _, start, stop, _) in found)}


class _Compare(_OfStage):
    def task(self, group: tuple[int, list[Slice]]) -> Task:
        return compare_documents(self._stage, group[0], _in_order(group[1]))

    def counts(self, group: object, found: object) -> dict[str, int]:
        return {"files_compared": 1}


class _Join(_OfStage):
    def task(self, group: tuple[int, list[Slice]]) -> Task:
        return join_components(self._stage, _in_order(group[1]))

    def counts(
        self, group: tuple[int, list[Slice]], found: list[tuple[int, Slice]]
    ) -> dict[str, int]:
        return {"bytes_linked": sum(stop - start for _, _, start, stop, _ in group[1])}


class _Store(_OfStage):
    def task(self, element: tuple[SourceFile, list[Block], list[Slice]]) -> Task:
        file, blocks, ranges = element
        return write_marked(self._stage, file, tuple(blocks), tuple(ranges))

    def counts(
        self,
        element: tuple[SourceFile, list[Block], list[Slice]],
        result: tuple[SourceFile, tuple[Block, ...]],
    ) -> dict[str, int]:
        return {"files_in": 1}
