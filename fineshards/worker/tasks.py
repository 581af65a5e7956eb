"""The tasks of a job, and what a worker needs for them. No Beam.

Each step asks for one kind of task. A task is a small value: it is sent to another process, and two
equal tasks have the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fineshards.cores import usable_cores
from fineshards.encoders.encoder import Encoder
from fineshards.encoders.token_documents import encoder_of
from fineshards.shards.assembly import write_shard
from fineshards.shards.buckets import merge_runs, write_bucket
from fineshards.shards.counts import Counts
from fineshards.shards.damaged_stretch import Stretch
from fineshards.shards.job.records import Block, MetadataFile, Piece, ShardRecord, SourceFile
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import Layout, ShardKey
from fineshards.shards.shuffle_order import Bucket, Fragment, Group
from fineshards.shards.tables.leaks import Comparison, KnownTexts, Part, parts_of, read_texts
from fineshards.shards.tables.repeats import Repeats, Sides, count_repeats
from fineshards.shards.tables.statistics_files import Hosts, StatisticsFiles
from fineshards.shards.tables.verdicts import JudgedBlock, KeyFile, Range
from fineshards.worker.blocks import (
    discover_file,
    encode_again,
    finish_block,
    probe_block,
)
from fineshards.worker.judging import Judging
from fineshards.worker.work import Work


class Worker:
    """What one process needs for its tasks; loaded when a task first needs it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._texts_in_test: KnownTexts | None = None

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the job."""
        work = self.work
        return encoder_of(work.settings, work.checkpoints.storage, work.tokenizer_engine)

    @cached_property
    def judging(self) -> Judging | None:
        """The steps of the job's recipe, if it has one."""
        return None if self.work.settings.recipe is None else Judging(self.work)

    @property
    def recipe(self) -> Judging:
        """The steps of the job's recipe, which it has."""
        assert self.judging is not None
        return self.judging

    @cached_property
    def statistics(self) -> StatisticsFiles:
        """The statistics in the job's checkpoints."""
        return StatisticsFiles(self.work.checkpoints, self.work.settings, self.work.inline)

    @cached_property
    def paths(self) -> list[str]:
        """The paths of the source files, by index."""
        return [file.path for file in self.work.checkpoints.job().files]

    def texts_in_test(self, shards: tuple[str, ...]) -> KnownTexts:
        """The texts of test; shards: all of that split, the same ones in every call."""
        if self._texts_in_test is None:
            storage, rule = self.work.checkpoints.storage, self.work.settings.split
            self._texts_in_test = KnownTexts(read_texts(storage, shard, rule) for shard in shards)
        return self._texts_in_test


@dataclass(frozen=True, slots=True)
class DiscoverFile:
    """Finds the blocks of a file."""

    file: SourceFile

    def run(self, worker: Worker) -> tuple[SourceFile, list[Block]]:
        """The file and its blocks: see `discover_file`."""
        return self.file, discover_file(self.file, worker.work)

    def __str__(self) -> str:
        return f"reading {self.file.path}"


@dataclass(frozen=True, slots=True)
class FinishBlock:
    """Makes the token block of a block."""

    file: SourceFile
    block: Block

    def run(self, worker: Worker) -> tuple[BlockSummary, bool]:
        """See `finish_block`."""
        work, statistics = worker.work, None
        if work.settings.statistics:
            statistics = worker.statistics
        return finish_block(self.file, self.block, worker.encoder, work, worker.judging, statistics)

    def __str__(self) -> str:
        block = self.block
        return (
            f"tokenizing block {block.index + 1} of {block.blocks} of {self.file.path} (from row "
            f"{block.first_row})"
        )


@dataclass(frozen=True, slots=True)
class JudgeBlock:
    """Judges a block in a stage of the recipe that ends with a keyed step."""

    file: SourceFile
    block: Block
    stage: int

    def run(self, worker: Worker) -> tuple[JudgedBlock, bool]:
        """See `Judging.judge_block`."""
        return worker.recipe.judge_block(self.file, self.block, self.stage)

    def __str__(self) -> str:
        block = self.block
        return (
            f"judging block {block.index + 1} of {block.blocks} of {self.file.path} (from row "
            f"{block.first_row})"
        )


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """Makes the keys of documents that others have."""

    file: SourceFile
    stage: int

    def run(self, worker: Worker) -> KeyFile:
        """See `Judging.index_keys`."""
        return worker.recipe.index_keys(self.file, self.stage)

    def __str__(self) -> str:
        return f"reading the keys of {self.file.path}"


@dataclass(frozen=True, slots=True)
class SplitKeys:
    """Cuts a file of keys by ranges of keys."""

    keys: KeyFile
    stage: int
    partitions: int

    def run(self, worker: Worker) -> list[tuple[int, Range]]:
        """See `Marking.split_keys`."""
        return worker.recipe.marking(self.stage).split_keys(self.keys, self.partitions)

    def __str__(self) -> str:
        return f"reading {self.keys.name}"


@dataclass(frozen=True, slots=True)
class MarkKeys:
    """Finds which documents have a key of an earlier one, in a range of keys."""

    stage: int
    partition: int
    partitions: int
    ranges: tuple[Range, ...]

    def run(self, worker: Worker) -> list[tuple[int, Range]]:
        """See `Marking.mark_keys`."""
        marking = worker.recipe.marking(self.stage)
        return marking.mark_keys(self.partition, self.partitions, self.ranges)

    def __str__(self) -> str:
        return f"comparing keys, range {self.partition + 1} of {self.partitions}"


@dataclass(frozen=True, slots=True)
class JoinComponents:
    """Finds the documents that are linked by keys in any number of steps."""

    stage: int
    ranges: tuple[Range, ...]

    def run(self, worker: Worker) -> list[tuple[int, Range]]:
        """See `Marking.join_components`."""
        return worker.recipe.marking(self.stage).join_components(self.ranges)

    def __str__(self) -> str:
        return "joining components"


@dataclass(frozen=True, slots=True)
class WriteMarked:
    """Stores which documents of a file have a key of an earlier one."""

    stage: int
    file: SourceFile
    blocks: tuple[Block, ...]
    ranges: tuple[Range, ...]

    def run(self, worker: Worker) -> tuple[SourceFile, tuple[Block, ...]]:
        """See `Marking.write_marked`; returns the file and its blocks, for the next stage."""
        worker.recipe.marking(self.stage).write_marked(self.file.index, self.ranges)
        return self.file, self.blocks

    def __str__(self) -> str:
        return f"marking the duplicates of {self.file.path}"


@dataclass(frozen=True, slots=True)
class WriteDecisions:
    """Writes the decisions about a file, and its keys if they are kept."""

    file: int

    def run(self, worker: Worker) -> list[MetadataFile]:
        """See `Judging.write_decisions`."""
        return worker.recipe.write_decisions(self.file)

    def __str__(self) -> str:
        return f"writing the decisions about file {self.file}"


@dataclass(frozen=True, slots=True)
class AddStatistics:
    """Adds up the statistics of a file's blocks."""

    file: int

    def run(self, worker: Worker) -> tuple[bytes, list[tuple[int, Hosts]]]:
        """See `StatisticsFiles.of_file`."""
        return worker.statistics.of_file(self.file)

    def __str__(self) -> str:
        return f"adding up the statistics of file {self.file}"


@dataclass(frozen=True, slots=True)
class TopHosts:
    """Finds the hosts with the most documents in a range of hosts."""

    number: int
    parts: tuple[Hosts, ...]

    def run(self, worker: Worker) -> bytes:
        """See `StatisticsFiles.top_hosts`."""
        return worker.statistics.top_hosts(self.number, self.parts)

    def __str__(self) -> str:
        return f"counting hosts, range {self.number}"


@dataclass(frozen=True, slots=True)
class ProbeBlock:
    """Makes a token block from the beginning of a block, for an estimate."""

    file: SourceFile
    block: Block
    limit: int

    def run(self, worker: Worker) -> tuple[BlockSummary, float]:
        """See `probe_block`."""
        return probe_block(self.file, self.block, self.limit, worker.encoder, worker.work)

    def __str__(self) -> str:
        return f"probing {self.file.path} (from row {self.block.first_row})"


@dataclass(frozen=True, slots=True)
class EncodeAgain:
    """Makes a token block of the documents of a block that lie in a stretch.

    redacted: rows whose tokens become EOT.
    """

    file: SourceFile
    block: Block
    stretch: Stretch
    redacted: tuple[int, ...] = ()

    def run(self, worker: Worker) -> tuple[BlockSummary, Counts, int]:
        """See `encode_again`."""
        return encode_again(
            self.file,
            self.block,
            self.stretch,
            worker.encoder,
            worker.work,
            worker.judging,
            self.redacted,
        )

    def __str__(self) -> str:
        return f"tokenizing {self.file.path} again (from row {self.block.first_row})"


@dataclass(frozen=True, slots=True)
class MergeRuns:
    """Merges runs into one sorted token block."""

    group: Group
    fragments: tuple[Fragment, ...]

    def run(self, worker: Worker) -> BlockSummary:
        """See `merge_runs`."""
        work = worker.work
        assert work.settings.shuffle is not None
        return merge_runs(self.group, self.fragments, work.settings.shuffle, work.checkpoints)

    def __str__(self) -> str:
        return f"merging sorted runs into group {self.group.number}"


@dataclass(frozen=True, slots=True)
class WriteBucket:
    """Writes the token block of a bucket."""

    bucket: Bucket
    fragments: tuple[Fragment, ...]

    def run(self, worker: Worker) -> BlockSummary:
        """See `write_bucket`."""
        work = worker.work
        assert work.settings.shuffle is not None
        return write_bucket(self.bucket, self.fragments, work.settings.shuffle, work.checkpoints)

    def __str__(self) -> str:
        return f"sorting bucket {self.bucket.number}"


@dataclass(frozen=True, slots=True)
class WriteShard:
    """Writes a shard from its pieces."""

    key: ShardKey
    pieces: tuple[Piece, ...]
    layout: Layout
    before: ShardRecord | None = None

    def run(self, worker: Worker) -> ShardRecord:
        """See `write_shard`."""
        work = worker.work
        return write_shard(
            self.key,
            self.pieces,
            self.layout,
            work.checkpoints,
            worker.paths,
            work.assembly,
            self.before,
        )

    def __str__(self) -> str:
        return f"writing {self.layout.shard_name(self.key)}"


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """Reads the hashes of the texts that begin in a shard, as far as they may leak."""

    split: str
    shard: str
    comparison: Comparison

    def run(self, worker: Worker) -> list[tuple[int, Part]]:
        """See `parts_of`."""
        work = worker.work
        texts = read_texts(work.checkpoints.storage, self.shard, work.settings.split)
        test_shards = self.comparison.test_shards
        if self.split == "train" and test_shards is not None:
            texts = worker.texts_in_test(test_shards).among(texts)
        return parts_of(self.split, self.shard, texts, self.comparison.ranges)

    def __str__(self) -> str:
        return f"comparing the texts of {self.shard}"


@dataclass(frozen=True, slots=True)
class CompareTexts:
    """Counts the new documents in a range of hashes that repeat earlier ones."""

    sides: Sides
    number: int

    def run(self, worker: Worker) -> Repeats:
        """See `count_repeats`."""
        storage, rule = worker.work.checkpoints.storage, worker.work.settings.split
        return count_repeats(storage, rule, self.sides, self.number, usable_cores())

    def __str__(self) -> str:
        return f"comparing new texts with earlier ones, range {self.number + 1}"


Task = (
    DiscoverFile
    | FinishBlock
    | JudgeBlock
    | IndexKeys
    | SplitKeys
    | MarkKeys
    | JoinComponents
    | WriteMarked
    | WriteDecisions
    | AddStatistics
    | TopHosts
    | ProbeBlock
    | EncodeAgain
    | MergeRuns
    | WriteBucket
    | WriteShard
    | ReadTexts
    | CompareTexts
)


def first_task(file: SourceFile, block: Block, work: Work) -> Task:
    """What is done first to a block."""
    recipe = work.settings.recipe
    return JudgeBlock(file, block, 0) if recipe and recipe.keyed else FinishBlock(file, block)


# What a task returns, and the seconds that it took.
Done = tuple[Any, float]
