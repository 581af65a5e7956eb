"""What a worker does: the tasks of a job. No Beam.

Each step asks for one kind of task: a call of a function below, without the worker.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Concatenate, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.cores import usable_cores
from fineshards.encoders.checked_encoder import encode_compared
from fineshards.encoders.encoder import Encoder, TokenBatch
from fineshards.errors import InputError, OutputError
from fineshards.shards import assembly
from fineshards.shards.block_writer import BlockWriter, Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts, LabelCount, Rejected
from fineshards.shards.job.records import (
    BadRow,
    Block,
    MetadataFile,
    Piece,
    ShardRecord,
    SourceFile,
    TokenBlock,
)
from fineshards.shards.layout import Shard
from fineshards.shards.npy import count_learned
from fineshards.shards.piece_plan import Place
from fineshards.shards.shuffle_order import Bucket, Fragment
from fineshards.shards.tables.documents import LEARNED
from fineshards.shards.tables.shared_texts import Comparison, SharedTexts, compare_range
from fineshards.shards.tables.statistics import Tally, has_block, write_block, write_file
from fineshards.shards.tables.verdicts import JudgedBlock
from fineshards.sources.columns import ColumnError
from fineshards.sources.reading import compared_with, discover_blocks
from fineshards.sources.rows import Rows
from fineshards.worker.comparing import Comparing
from fineshards.worker.documents import DocumentBatch, document_encoder, documents
from fineshards.worker.judging import Judging
from fineshards.worker.marking import Marking
from fineshards.worker.work import Work

_Arguments = ParamSpec("_Arguments")
# Footers that a worker reads at once from far storage.
_FAR_FILES = 16

# What a task returns, and the seconds that it took.
Done = tuple[Any, float]
# Bytes of tokens that a worker keeps besides the block that it makes: those of one large block.
HELD_BYTES = 128 << 20
# As many small ones at most: their names go with each answer.
HELD_BLOCKS = 64
# Counts of record batches that are kept before they are added up.
_ADDENDS = 64


class Worker:
    """What one process needs for the tasks of a job; loaded when a task first needs it.

    alone: whether no other run of the job writes unfinished shards.
    """

    def __init__(self, work: Work, alone: bool = False) -> None:
        self.work = work
        self.alone = alone
        self.held = HeldBlocks(work.checkpoints)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the job."""
        work = self.work
        return document_encoder(work.settings, work.checkpoints.storage, work.tokenizer_engine)

    @cached_property
    def judging(self) -> Judging | None:
        """The steps of the job's recipe, if it has one."""
        return None if self.work.settings.recipe is None else Judging(self.work)

    @cached_property
    def paths(self) -> list[str]:
        """The paths of the source files, by index."""
        return [file.name for file in self.work.checkpoints.job().files]


class HeldBlocks:
    """Token blocks in a worker's memory, as made, until their place in the shards is known.

    blocks: by name, in the order in which they were made. most: bytes of tokens; 0 where no place
    is known before all blocks are counted.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self.blocks: dict[TokenBlock, BlockWriter] = {}
        self.most = 0

    def settle(self, places: list[Place] | None) -> None:
        """Finishes blocks at their places, unless that is done; without places, all blocks."""
        if places is None:
            self.store()
        for place in places or ():
            if (block := self.blocks.pop(place.block, None)) is not None:
                self._checkpoints.stop_if_replaced(block.name.file)
                self._checkpoints.blocks.place(block, place)

    def store(self, most: int = 0) -> None:
        """Finishes the first blocks in files of their own, until few have under `most` bytes."""
        while (count := len(self.blocks)) and (
            count > HELD_BLOCKS or sum(block.bytes for block in self.blocks.values()) >= most
        ):
            block = self.blocks.pop(next(iter(self.blocks)))
            self._checkpoints.stop_if_replaced(block.name.file)
            self._checkpoints.blocks.store(block)


@dataclass(frozen=True, slots=True)
class Task:
    """A small value: it is sent to another process, and two equal tasks have the same result."""

    name: str
    arguments: tuple[Any, ...]

    def run(self, worker: Worker) -> Any:
        """Does the task; returns what its function returns."""
        return TASKS[self.name][0](worker, *self.arguments)

    def __str__(self) -> str:
        return TASKS[self.name][1](*self.arguments)


# By name: what does a task, and what to say that it is doing, both of the task's arguments.
TASKS: dict[str, tuple[Callable[..., Any], Callable[..., str]]] = {}


def _task(
    doing: Callable[..., str],
) -> Callable[[Callable[Concatenate[Worker, _Arguments], object]], Callable[_Arguments, Task]]:
    """Makes a function of a worker one that returns the task of calling it."""

    def named(
        function: Callable[Concatenate[Worker, _Arguments], object],
    ) -> Callable[_Arguments, Task]:
        TASKS[function.__name__] = function, doing

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
        assert worker.judging is not None
        return method(worker.judging.keyed_step(stage), *arguments, **keywords)

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
    discover = partial(discover_file, work=worker.work)
    if len(files) == 1:
        return [(files[0], discover(files[0]))]
    with ThreadPoolExecutor(len(files)) as pool:
        return list(zip(files, pool.map(discover, files), strict=True))


def discover_file(file: SourceFile, work: Work) -> list[Block]:
    """Returns the blocks of a file, as an earlier run stored them or from its metadata."""
    blocks = work.checkpoints.read_blocks(file.index)
    if blocks is None:
        try:
            blocks = discover_blocks(file, work.settings.columns, work.settings.block_bytes)
        except ColumnError as error:
            first = work.checkpoints.job().files[0]
            raise InputError(f"{error}{compared_with(first, file)}") from error
        work.checkpoints.write_blocks(file.index, blocks)
    return blocks


def _block_words(file: SourceFile, block: Block) -> str:
    return f"block {block.index + 1} of {block.blocks} of {file.path} (from row {block.first_row})"


@_task(lambda file, block: f"tokenizing {_block_words(file, block)}")
def finish_block(worker: Worker, file: SourceFile, block: Block) -> tuple[BlockSummary, bool]:
    """Encodes a block into its token block, unless an earlier run did.

    The last stage of the job's recipe, if it has one, is done here, and the statistics of the
    documents are stored, if the job makes any.

    Returns the block's summary, and whether an earlier run had finished it. Rows with null text
    are counted and skipped. Rows that cannot be encoded are listed in `metadata/rejected/`; one
    more than allowed raises InputError.
    """
    work, judging = worker.work, worker.judging
    summary = work.checkpoints.blocks.read_summary(block.place)
    if (
        summary is not None
        and (judging is None or judging.has_last_stage(block))
        and (not work.settings.statistics or has_block(work.checkpoints, block))
    ):
        return summary, True
    work.checkpoints.stop_if_replaced(file.index)
    batches = judging.to_tokenize(file, block) if judging else documents(file, work.settings, block)
    return _encode(batches, file, block, worker), False


def _encode(
    batches: Iterable[DocumentBatch], file: SourceFile, block: Block, worker: Worker
) -> BlockSummary:
    """Writes a token block of documents; a sorted one, if documents are shuffled."""
    work, encoder = worker.work, worker.encoder
    checkpoints, settings = work.checkpoints, work.settings
    # Added up now and then: a sum costs time for each label, and its parts cost memory.
    counts: list[Counts] = []
    rejected = Rejected(file, work.max_bad_rows)
    tally = Tally() if settings.statistics else None
    redacted = [row for of, row in work.redacted if of == file.index]
    with (
        checkpoints.blocks.create_runs(block.place, settings.shuffle, settings.block_bytes)
        if settings.shuffle
        else checkpoints.blocks.create_block(block.place, worker.held.most)
    ) as writer:
        for batch in batches:
            rows, encoded, compared = _encoded(batch.rows, file, encoder)
            rejected.add([*batch.read.bad, *rows.bad])
            sources = rows.sources(file, settings.split)
            if encoded.learned is not None:
                sources = sources.append_column(LEARNED, encoded.learned)
            tokens, lengths = encoded.tokens, np.diff(encoded.offsets)
            if redacted:
                gone = np.isin(rows.numbers, redacted)
                eot = tokens.dtype.type(settings.tokenizer.eot)
                tokens = np.where(np.repeat(gone, lengths), eot, tokens)
            writer.append(Documents(tokens, encoded.offsets, sources))
            counts += batch.counts()
            counts.append(_document_counts(rows, lengths, encoded, compared))
            if tally is not None:
                tally.add_dataset(rows.texts, lengths, rows.labels)
            if settings.columns.tokens is not None:
                eots = int(np.count_nonzero(encoded.tokens == settings.tokenizer.eot))
                counts.append(Counts(inner_eots=eots - len(lengths)))
            if len(counts) > _ADDENDS:
                counts = [Counts.total(counts)]
        rejected.save(checkpoints.storage, block)
        if tally is not None:
            # Before the token block is finished: then it has them.
            write_block(checkpoints, block, tally.table())
        summary = writer.finish(block.index, block.blocks, Counts.total(counts))
    if isinstance(writer, BlockWriter) and writer.is_held:
        worker.held.blocks[writer.name] = writer
    return summary


def _encoded(rows: Rows, file: SourceFile, encoder: Encoder) -> tuple[Rows, TokenBatch, int]:
    """Encodes rows with text; returns the documents, their tokens, and how many were compared.

    The bad rows of the documents are those that the encoder refuses.
    """
    encoded, compared = encode_compared(encoder, rows.texts, file, rows.numbers)
    bad = [BadRow(int(rows.numbers[index]), "", reason) for index, reason in encoded.refused]
    if not bad:
        return replace(rows, bad=[]), encoded, compared
    keep = np.diff(encoded.offsets) > 0
    encodable = replace(
        encoded,
        offsets=encoded.offsets[np.concatenate([[True], keep])],
        learned=None if encoded.learned is None else encoded.learned.filter(pa.array(keep)),
    )
    return rows.filter(keep, bad), encodable, compared


def _document_counts(
    rows: Rows, lengths: npt.NDArray[np.int64], encoded: TokenBatch, compared: int
) -> Counts:
    """Counts documents, and the bad rows that the encoder refused. lengths: in tokens, with EOT."""
    labels = []
    for column, values in rows.labels.items():
        labelled = pa.table({"value": values, "tokens": lengths}).drop_null()
        by_value = labelled.group_by("value", use_threads=False)
        sums = by_value.aggregate([("tokens", "count"), ("tokens", "sum")])
        labels += [LabelCount(column, *row.values()) for row in sums.to_pylist()]
    learned = 0
    if encoded.learned is not None:
        learned = count_learned(encoded.learned.flatten().to_numpy().reshape(-1, 2))
    return Counts(
        documents=len(rows.numbers),
        rejected=len(rows.bad),
        tokens=int(lengths.sum()),
        text_bytes=rows.text_bytes,
        by_reference=encoded.by_reference,
        compared=compared,
        learned=learned,
        labels=tuple(labels),
    )


@_task(lambda file, block: f"reading the counts of {_block_words(file, block)}")
def read_counts(worker: Worker, file: SourceFile, block: Block) -> BlockSummary:
    """Reads the summary of a token block that this machine or another one has finished."""
    return finished_part(block.place, None, worker.work)


def finished_part(place: TokenBlock, stream: str | None, work: Work) -> BlockSummary:
    """The summary of a token block that a share of the job has finished.

    stream: whose part is checked; None for none. Raises OutputError if it is missing or damaged: a
    machine may have lost power after it had finished the block.
    """
    checked = () if stream is None else (stream,)
    summary = work.checkpoints.blocks.read_summary(place, checked)
    if summary is None:
        path = work.checkpoints.storage.path(work.checkpoints.blocks.tokens_name(place, *checked))
        raise OutputError(
            f"{path} is not whole, or is gone since the shares have begun. Run the command without "
            "--share, which makes it again and does what is left."
        )
    return summary


@_task(lambda file, block, stage: f"judging {_block_words(file, block)}")
def judge_block(
    worker: Worker, file: SourceFile, block: Block, stage: int
) -> tuple[JudgedBlock, bool]:
    """Judges a block in a stage of the recipe that ends with a keyed step."""
    assert worker.judging is not None
    return worker.judging.judge_block(file, block, stage)


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
    return assembly.write_bucket(bucket, fragments, shuffle, worker.work.checkpoints, index)


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
                finished_part(place, stream, work)
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
