"""The tasks of a job. No Beam.

Each step asks for one kind of task: a call of a function below, without the worker.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.shards import assembly, buckets
from fineshards.shards.counts import BlockSummary
from fineshards.shards.job.records import Block, MetadataFile, Piece, ShardRecord, SourceFile
from fineshards.shards.layout import Shard
from fineshards.shards.shuffle_order import Bucket, Fragment
from fineshards.shards.tables.shared_texts import Comparison, SharedTexts, compare_range
from fineshards.shards.tables.statistics import write_file
from fineshards.shards.tables.verdicts import JudgedBlock
from fineshards.worker import blocks
from fineshards.worker.comparing import Comparing
from fineshards.worker.marking import Marking
from fineshards.worker.work import Work
from fineshards.worker.worker import Worker

_Arguments = ParamSpec("_Arguments")
# Footers that a worker reads at once from far storage.
_FAR_FILES = 16

# What a task returns, and the seconds that it took.
Done = tuple[Any, float]


@dataclass(frozen=True, slots=True)
class Task:
    """A small value: it is sent to another process, and two equal tasks have the same result."""

    name: str
    arguments: tuple[Any, ...]

    def run(self, worker: Worker) -> Any:
        """Does the task; returns what its function returns."""
        return _TASKS[self.name][0](worker, *self.arguments)

    def __str__(self) -> str:
        return _TASKS[self.name][1](*self.arguments)


# By name: what does a task, and what to say that it is doing, both of the task's arguments.
_TASKS: dict[str, tuple[Callable[..., Any], Callable[..., str]]] = {}


def _task(
    doing: Callable[..., str],
) -> Callable[[Callable[Concatenate[Worker, _Arguments], object]], Callable[_Arguments, Task]]:
    """Makes a function of a worker one that returns the task of calling it."""

    def named(
        function: Callable[Concatenate[Worker, _Arguments], object],
    ) -> Callable[_Arguments, Task]:
        _TASKS[function.__name__] = function, doing

        def task(*arguments: _Arguments.args, **_: _Arguments.kwargs) -> Task:
            return Task(function.__name__, arguments)

        return task

    return named


def _of_stage(
    method: Callable[Concatenate[Any, _Arguments], object], doing: Callable[..., str]
) -> Callable[Concatenate[int, _Arguments], Task]:
    """As `_task`, of a method of the keyed step that ends a stage, which is the first argument."""

    def call(
        worker: Worker, stage: int, /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> object:
        return method(worker.recipe.keyed_step(stage), *arguments, **keywords)

    call.__name__ = method.__name__
    return _task(doing)(call)


def side_by_side(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, ...]]:
    """Parts a job's files into those whose footers a worker reads at once.

    Many where each answer takes its time: far storage is waited for, a disk is not.
    """
    count = _FAR_FILES if any("://" in file.path for file in files) else 1
    return (tuple(files[first : first + count]) for first in range(0, len(files), count))


@_task(lambda file, *others: f"reading {file.path}" + (" and others" if others else ""))
def discover_files(worker: Worker, *files: SourceFile) -> list[tuple[SourceFile, list[Block]]]:
    """Finds the blocks of files, side by side; returns the files too."""
    discover = partial(blocks.discover_file, work=worker.work)
    if len(files) == 1:
        return [(files[0], discover(files[0]))]
    with ThreadPoolExecutor(len(files)) as pool:
        return list(zip(files, pool.map(discover, files), strict=True))


def _block_words(file: SourceFile, block: Block) -> str:
    return f"block {block.index + 1} of {block.blocks} of {file.path} (from row {block.first_row})"


@_task(lambda file, block: f"tokenizing {_block_words(file, block)}")
def finish_block(worker: Worker, file: SourceFile, block: Block) -> tuple[BlockSummary, bool]:
    """Makes the token block of a block."""
    return blocks.finish_block(file, block, worker)


@_task(lambda file, block: f"reading the counts of {_block_words(file, block)}")
def read_counts(worker: Worker, file: SourceFile, block: Block) -> BlockSummary:
    """Reads the summary of a token block that this machine or another one has finished."""
    return blocks.finished_part(block.place, None, worker.work)


@_task(lambda file, block, stage: f"judging {_block_words(file, block)}")
def judge_block(
    worker: Worker, file: SourceFile, block: Block, stage: int
) -> tuple[JudgedBlock, bool]:
    """Judges a block in a stage of the recipe that ends with a keyed step."""
    return worker.recipe.judge_block(file, block, stage)


index_keys = _of_stage(Marking.index_keys, lambda _, file: f"reading the keys of {file.path}")
split_keys = _of_stage(Marking.split_keys, lambda _, keys, __: f"reading {keys.name}")
mark_keys = _of_stage(
    Marking.mark_keys, lambda _, number, of, __: f"comparing keys, range {number + 1} of {of}"
)
write_contents = _of_stage(
    Comparing.write_contents, lambda _, file, __: f"reading candidates of file {file}"
)
compare_documents = _of_stage(
    Comparing.compare_documents, lambda _, file, __: f"comparing documents of file {file}"
)
join_components = _of_stage(Marking.join_components, lambda *_: "joining components")
write_marked = _of_stage(
    Marking.write_marked, lambda _, file, *__: f"marking the duplicates of {file.path}"
)


@_task(lambda file: f"writing the tables of file {file}")
def write_tables(worker: Worker, file: int) -> list[MetadataFile]:
    """Writes the statistics of a file, the decisions about it, and its keys if they are kept."""
    judging = worker.judging
    counted = [] if judging is None else judging.statistics(file)
    written = [] if judging is None else judging.write_decisions(file)
    return [*written, write_file(worker.work.checkpoints, file, counted)]


@_task(lambda bucket, *_: f"sorting bucket {bucket.number}")
def write_bucket(
    worker: Worker, bucket: Bucket, fragments: tuple[Fragment, ...], index: int = 0
) -> BlockSummary:
    """Writes the token block of a bucket."""
    shuffle = worker.work.settings.shuffle
    assert shuffle is not None
    return buckets.write_bucket(bucket, fragments, shuffle, worker.work.checkpoints, index)


@_task(lambda shard, _: f"writing {shard.name}")
def write_shard(worker: Worker, shard: Shard, pieces: tuple[Piece, ...]) -> ShardRecord:
    """Writes a shard from its pieces, in any order."""
    work, checkpoints = worker.work, worker.work.checkpoints
    record = checkpoints.finished_shard(shard.name)
    if record is None:
        for file in {piece.block.file for piece in pieces if piece.block.folder == "blocks"}:
            checkpoints.stop_if_replaced(file)
        if work.shared:
            for place, stream in {(piece.block, piece.stream) for piece in pieces}:
                blocks.finished_part(place, stream, work)
        write = partial(
            assembly.write_shard,
            *(shard, pieces, checkpoints, worker.paths, worker.alone),
        )
        try:
            record = write()
        except OutputError:
            # Another launch of this job may have been faster, or gave a shard that this one read
            # its name.
            record = checkpoints.finished_shard(shard.name) or write()
    return record


@_task(lambda _, number: f"comparing texts, range {number + 1}")
def compare_texts(worker: Worker, comparison: Comparison, number: int) -> SharedTexts:
    """Counts the documents in a range of hashes that share a text."""
    storage, rule = worker.work.checkpoints.storage, worker.work.settings.split
    return compare_range(storage, rule, comparison, number, usable_cores())


def first_task(file: SourceFile, block: Block, work: Work) -> Task:
    """What is done first to a block."""
    recipe = work.settings.recipe
    return judge_block(file, block, 0) if recipe and recipe.keyed else finish_block(file, block)
