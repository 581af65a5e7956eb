"""MarkLater: which documents have a key that an earlier document has.

All deduplication is this one step, with other keys: see docs/curation.md.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam

from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import RecipeRecord, StepRecord
from fineshards.shards.layout import keys_name
from fineshards.shards.tables.verdicts import WANTED, JudgedBlock, KeyFile, Slice
from fineshards.storage.checksums import checksum_from_base64
from fineshards.transforms.run_tasks import GroupLists, JobStep, RunTasks
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

# Bytes of keys that a worker compares at a time, by default; it needs about four times as much.
_RANGE_BYTES, _MOST_RANGE_BYTES = 64 << 20, 512 << 20
_MANY_RANGES = 1 << 10
# About what a key takes, to count those of earlier generations and to size ranges.
_KEY_BYTES = 16
_log = logging.getLogger("fineshards.worker")


class MarkLater(JobStep):
    """From (file, block) pairs to the same pairs, once it is known which documents to drop.

    Each block is judged by the steps before the keyed one, and gives the keys of the documents that
    are left. Keys are grouped by ranges, compared, and marks go back by file. Texts and
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
            | "Judge" >> judge_blocks(work, stage)
            | "Judged" >> beam.Map(_first)
        )
        keys = judged | "Keys" >> beam.Map(_keys)
        step = _step(work, stage)
        if step.use == "seen_in" or work.earlier:
            keys = (keys, self._others(blocks.pipeline, step)) | "AllFiles" >> beam.Flatten()
        partitions = beam.pvalue.AsSingleton(
            keys
            | "Count" >> beam.Map(_count)
            | "AllKeys" >> beam.CombineGlobally(sum)
            | "Partitions" >> beam.Map(_partitions, work)
        )
        marks = (
            keys
            | "Ranges" >> self._run(lambda file, parts: split_keys(stage, file, parts), partitions)
            | "EachRange" >> beam.FlatMap(iter)
            | "ByRange" >> GroupLists()
            | "Mark" >> self._of_group(mark_keys, partitions)
            | "EachMarks" >> beam.FlatMap(iter)
        )
        if step.verifies:
            pairs, wanted = marks | "ByKind" >> beam.Partition(_is_wanted, 2)
            contents = (
                wanted
                | "ByCandidate" >> GroupLists()
                | "Contents" >> self._of_group(write_contents)
                | "EachContents" >> beam.FlatMap(iter)
            )
            marks = (
                (pairs, contents)
                | "PairsAndContents" >> beam.Flatten()
                | "ByLater" >> GroupLists()
                | "Compare" >> self._of_group(compare_documents)
                | "EachCompared" >> beam.FlatMap(iter)
            )
        if step.rule == "components":
            marks = (
                marks
                | "AllLinks" >> GroupLists()
                | "Join" >> self._run(lambda group: join_components(stage, _in_order(group[1])))
                | "EachJoined" >> beam.FlatMap(iter)
            )
        # The blocks of a file are read on when all its marks are there.
        return (
            (marks, judged | "ByFile" >> beam.Map(_by_file))
            | "MarksAndBlocks" >> beam.Flatten()
            | "OfFile" >> GroupLists()
            | "FileAndMarks" >> beam.FlatMap(_file_and_marks)
            | "Store" >> self._run(lambda file: write_marked(stage, *file))
            | "Blocks" >> beam.FlatMap(_pairs)
        )

    def _run(self, task: Callable[..., Task], *side: Any) -> beam.ParDo:
        return beam.ParDo(RunTasks("mark_later", self._work, task), *side)

    def _of_group(self, task: Callable[..., Task], *side: Any) -> beam.ParDo:
        """The tasks of a number and slices, which get the side inputs in between."""
        stage = self._stage
        return self._run(
            lambda group, *given: task(stage, group[0], *given, _in_order(group[1])), *side
        )

    def _others(self, pipeline: beam.Pipeline, step: StepRecord) -> beam.PCollection:
        """The keys of documents that are not read: of other datasets, of earlier generations."""
        job, stage = pipeline | "Job" >> beam.Create([self._work]), self._stage
        if step.use != "seen_in":
            kept = job | "Kept" >> beam.FlatMap(_kept, stage)
            return kept | "SpreadKept" >> beam.Reshuffle()
        return (
            job
            | "Indexes" >> beam.FlatMap(_indexes, stage)
            | "SpreadIndexes" >> beam.Reshuffle()
            | "Index" >> self._run(lambda file: index_keys(stage, file))
        )


def judge_blocks(work: Work, stage: int) -> beam.ParDo:
    """From (file, block) pairs to (judged block, whether an earlier run had judged it)."""

    def task(pair: tuple[SourceFile, Block]) -> Task:
        return judge_block(*pair, stage)

    return beam.ParDo(RunTasks("mark_later", work, task, _count_judged))


def _count_judged(_: object, result: tuple[JudgedBlock, bool]) -> dict[str, int]:
    return {"blocks_reused": int(result[1]), "keys_out": result[0].keys.count}


def _first(result: tuple[JudgedBlock, bool]) -> JudgedBlock:
    return result[0]


def _keys(judged: JudgedBlock) -> KeyFile:
    return judged.keys


def _count(keys: KeyFile) -> int:
    return keys.count


def _recipe(work: Work) -> RecipeRecord:
    assert work.settings.recipe is not None
    return work.settings.recipe


def _step(work: Work, stage: int) -> StepRecord:
    """The keyed step that ends a stage."""
    return _recipe(work).steps[_recipe(work).keyed[stage]]


def _kept(work: Work, stage: int) -> Iterator[KeyFile]:
    """The keys of the documents of earlier generations."""
    step = _recipe(work).keyed[stage]
    earlier = work.earlier.manifest(work.checkpoints.storage)
    # A file without rows has none.
    names = {keys_name(file.index, step) for file in earlier.files}
    for file in earlier.metadata:
        if file.name in names:
            checksum = checksum_from_base64(file.crc32c)
            yield KeyFile(file.name, file.bytes // _KEY_BYTES, checksum)


def _indexes(work: Work, stage: int) -> Iterator[SourceFile]:
    """The files that a step `seen_in` looks documents up in."""
    step = _recipe(work).keyed[stage]
    return (file for number, file in _recipe(work).indexes if number == step)


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


def _is_wanted(marks: tuple[int, Slice], _: int) -> int:
    return int(marks[1][0] == WANTED)


def _by_file(judged: JudgedBlock) -> tuple[int, tuple[SourceFile, Block]]:
    return judged.file.index, (judged.file, judged.block)


def _file_and_marks(
    group: tuple[int, list[Any]],
) -> Iterator[tuple[SourceFile, tuple[Block, ...], tuple[Slice, ...]]]:
    """A file with its blocks in order, and its marks; nothing for a file of an earlier job."""
    pairs = [pair for pair in group[1] if isinstance(pair[0], SourceFile)]
    ranges = [part for part in group[1] if not isinstance(part[0], SourceFile)]
    if pairs:
        blocks = sorted((block for _, block in pairs), key=lambda block: block.index)
        yield pairs[0][0], tuple(blocks), _in_order(ranges)


def _in_order(ranges: Iterable[Slice]) -> tuple[Slice, ...]:
    """Ranges in the order of their places, so that a task that is done again is the same one."""
    return tuple(sorted(ranges, key=lambda part: part[:4]))


def _pairs(marked: tuple[SourceFile, tuple[Block, ...]]) -> Iterator[tuple[SourceFile, Block]]:
    file, blocks = marked
    return ((file, block) for block in blocks)
