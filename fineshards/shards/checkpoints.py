"""Checkpoints: files in `checkpoints/<fingerprint>/` from which a restarted job resumes.

    dataflow.json                  where the job runs, on Dataflow: see job/runs.py
    files/00003.json               the blocks of a source file (step Discover)
    shards/train-17.npy            an unfinished shard: token blocks at their places
    blocks/00003-00012.tokens      a token block whose place was not known: tokens as in the shards
    blocks/00003-00012.parquet     the block's documents
    blocks/00003-00012.json        its summary, and where both are; written last
    blocks/00003-00012.documents   its documents, if they are shuffled: see shuffle_order.py
    buckets/00003-00000.parquet    a token block of all documents with the same leading bits
    plan.json                      the layout of the shards (step Plan)
    shards/train_0017.json         the record of a finished shard
    redacted/train_0017.json       what a shard becomes when it is redacted

Where the split is by document, a token block has two parts, `00003-00012.test.tokens` and
`00003-00012.train.tokens`, each with its documents. A part without documents has no files.

Files that end with .json are entries of the ledger, by which a restart finds what is finished: see
ledger.py. A shard is one header followed by whole or cut token blocks. Checkpoints are short-lived
and therefore not durable: a power cut may damage them.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.job.job import Job, job_name
from fineshards.shards.job.records import Block, ShardRecord, SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.layout import Layout, shard_stem
from fineshards.shards.ledger import ENTRY, Kind, Ledger, Range
from fineshards.shards.split_rule import FirstShards, SplitRule
from fineshards.shards.token_blocks import BLOCKS, LAYOUT, PLAN, SHARDS, TokenBlocks, block_of
from fineshards.storage.base import TEMPORARY, Storage

FOLDER = "checkpoints"
# Small files of a store that are read at the same time.
_READ_THREADS = 32
_FILES = Kind("files", list[Block])
# What shards become when they are redacted.
REDACTED = Kind("redacted", ShardRecord)
_NO_TEST = FirstShards(0)


class _FollowedError(Exception):
    """A job that adds the next generation has begun."""


class Checkpoints:
    """The checkpoints of one job.

    dtype: of its tokens. rule: of its split, which decides the streams. settings: the job's, to say
    how a job that took its place differs. generation: that it makes of the dataset. blocks: its
    token blocks.
    """

    def __init__(
        self,
        storage: Storage,
        fingerprint: str,
        dtype: np.dtype[np.unsignedinteger] = npy.TOKEN_DTYPE,
        rule: SplitRule = _NO_TEST,
        settings: Settings | None = None,
        generation: int = 1,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.rule = rule
        self._settings = settings
        self._generation = generation
        self.folder = f"{FOLDER}/{fingerprint}"
        self._fingerprint = fingerprint
        self.ledger = Ledger(storage, self.folder)
        chat = settings is not None and settings.chat is not None
        self.blocks = TokenBlocks(storage, self.folder, dtype, rule, chat)

    @classmethod
    def of(cls, storage: Storage, job: Job) -> Checkpoints:
        """The checkpoints of a job in its output folder."""
        of, fingerprint = job.settings, job.fingerprint()
        return cls(storage, fingerprint, of.token_dtype, of.split, of, job.generation)

    def job(self) -> Job:
        """The job of these checkpoints, read from the output folder.

        Raises OutputError if another job has taken over the folder: the workers of the job that was
        replaced must stop before they write among the new shards.
        """
        job = Job.load(self.storage, self._generation)
        if job is None:
            raise OutputError(
                f"{self.storage.root} has no job record any more, so this job stops: another one "
                "is taking its place, or someone deleted it. Let one job finish before you start "
                "another with the same output."
            )
        if job.fingerprint() != self._fingerprint:
            differences = self._settings.differences(job.settings) if self._settings else []
            raise OutputError(
                f"{self.storage.root} was taken over by another job, so this one stops. The other "
                f"job differs: {'; '.join(differences) or 'it has other input files'}. Let one job "
                "finish before you start another with the same output."
            )
        return job

    def stop_if_replaced(self, file: int) -> None:
        """Raises OutputError if another job has taken over the folder since a file was discovered.

        Cheap enough for every block: it looks for the file's blocks, which a replacing launch
        deletes, and not into the job record, which may hold 50,000 files.
        """
        if self.storage.size(self.ledger.name(_FILES, f"{file:05d}")) is None:
            self.job()
            # The record goes last of all that a replacing launch deletes.
            raise OutputError(
                f"{self.storage.path(self.folder)} is being deleted by another launch, or this job "
                "is finished. Run the same command again."
            )

    def clear(self, keep: bool = False) -> None:
        """Deletes the files that only an unfinished job needs.

        A job that adds the next generation may have begun by now, and its files stay. keep: the
        checkpoints themselves stay too. Raises OutputError if another job has the folder.
        """
        try:
            self.storage.delete_folder(TEMPORARY if keep else FOLDER, self._check_last)
        except _FollowedError:
            if not keep:
                self.storage.delete_folder(self.folder, self.job)

    def _check_last(self) -> None:
        self.job()
        if self.storage.size(job_name(self._generation + 1)) is not None:
            raise _FollowedError

    def files_to_read(self, earlier: bool = False) -> tuple[SourceFile, ...]:
        """The source files that the job reads. earlier: those of earlier generations too."""
        job = self.job()
        return job.files if earlier else job.new_files

    def has_finished_blocks(self) -> bool:
        """Whether any block is finished, or judged in a stage of a recipe."""
        if any(True for _ in self.storage.entries(f"{self.folder}/judged")):
            return True
        files = self.ledger.files(BLOCKS["blocks"])
        return any(block_of(key) and ending == ENTRY for key, ending, _ in files)

    def write_layout(self, layout: Layout) -> None:
        """Stores the layout, which `status` reads."""
        self.ledger.put(LAYOUT, PLAN, (), layout)

    def read_layout(self) -> Layout | None:
        """The layout, or None if it is not planned yet, or damaged."""
        return self.ledger.get(LAYOUT, PLAN)

    def planned_at(self) -> float:
        """When the layout was stored; 0 if it is not there any more. Only on object storage."""
        entries = self.storage.entries_by_beginning(self.folder, ["plan.json"])
        return max((entry.modified for entry in entries), default=0.0)

    def write_shard_record(self, record: ShardRecord) -> None:
        """Marks a shard as finished."""
        ranges = [Range.whole(*file) for file in record.files()]
        self.ledger.put(SHARDS, shard_stem(record.name), ranges, record)

    def finished_shard(self, shard_name: str) -> ShardRecord | None:
        """The record of a finished shard, if its files are still what that says."""
        record = self.ledger.get(SHARDS, shard_stem(shard_name))
        return record if record is not None and record.name == shard_name else None

    def write_blocks(self, file: int, blocks: list[Block]) -> None:
        """Stores the blocks of a source file."""
        self.ledger.put(_FILES, f"{file:05d}", (), blocks)

    def read_blocks(self, file: int) -> list[Block] | None:
        """The blocks of a source file, or None if they are not stored yet, or damaged."""
        return self.ledger.get(_FILES, f"{file:05d}")

    def read_new_blocks(self, listed: Collection[int]) -> dict[int, list[Block]]:
        """The blocks of the files that are not in `listed` yet."""
        files = {int(key) for key in self.ledger.list(_FILES) if key.isdecimal()}.difference(listed)
        with ThreadPoolExecutor(1 if self.storage.on_disk else _READ_THREADS) as pool:
            pairs = zip(files, pool.map(self.read_blocks, files), strict=True)
            return {file: blocks for file, blocks in pairs if blocks is not None}
