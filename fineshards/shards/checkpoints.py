"""Checkpoints: files in `checkpoints/<fingerprint>/` from which a restarted job resumes.

    dataflow.json                  where the job runs, on Dataflow: see job/remote_run.py
    versions.json                  identities of source files that were copied or touched meanwhile
    files/00003.json               the blocks of a source file (step Discover)
    files/00000-00999.json         those of many, on object storage, for `status`
    same/00003-00012.json          a block of such a file that has the rows that it had
    blocks/00003-00012.tokens      a token block: tokens as in the shards, without a header
    blocks/00003-00012.parquet     the block's documents and summary; written after the tokens
    blocks/00003-00012.written.json  of a block whose tokens are in shards: what is left of it
    blocks/00003-00012.json        instead of it, if documents are shuffled: see runs.py
    merged/00003-00000.json        sorted blocks made of several, where one is too small
    buckets/00003-00000.parquet    a token block of all documents with the same leading bits
    plan.json                      the layout of the shards (step Plan)
    shards/train_0017.json         the record of a finished shard; written after the shard

Where the split is by document, a token block has two parts, `00003-00012.test.tokens` and
`00003-00012.train.tokens`, each with its documents. A part without documents has no files, except
that the train documents are always written: they hold the summary, and are written last.

The later file of a pair marks the work as finished; without it the work is done again. Token blocks
have no header, so a shard is one header followed by whole or cut token blocks. Checkpoints are
short-lived and therefore not durable: a power cut may damage them. A restart checks them before it
uses them, and repeats the work behind a damaged one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.block_writer import (
    CHECKSUM_KEY,
    SUMMARY_KEY,
    BlockWriter,
    Documents,
    StreamPart,
    documents_writer,
)
from fineshards.shards.job.job import Job, job_name
from fineshards.shards.job.records import (
    JSON_ERRORS,
    RARE,
    Block,
    ReadRows,
    ShardRecord,
    SourceFile,
    TokenBlock,
    as_text,
    from_fields,
)
from fineshards.shards.job.settings import Settings
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import ONE_STREAM, Layout, Shuffle, SplitRule, files_of, shard_stem
from fineshards.shards.parquet_file import open_parquet
from fineshards.shards.runs import RunWriter, parse_cells
from fineshards.shards.shuffle_order import Fragment
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.checksums import file_checksum

FOLDER = "checkpoints"
_BLOCK_NAME = re.compile(r"(\d{5,})-(\d{5,})\..+", re.ASCII)
_FILES_NAME = re.compile(r"(\d{5,})(?:-(\d{5,}))?\.json", re.ASCII)
_SHARD_RECORD = re.compile(r"(test|train)_(\d{4,})\.json", re.ASCII)
# Ends the name of what is left of a block whose tokens are in finished shards.
_WRITTEN = ".written.json"
# Bytes per request for a block's documents: enough for those of most blocks.
_DOCUMENT_BYTES = 4 << 20
# Source files whose blocks are also stored together.
FILES_TOGETHER = 1000
# Source files, or shards, whose checkpoints are deleted together at the end of a large job.
_NUMBERS_IN_A_PART = 100
# Small files of a store that are read at the same time.
_READ_THREADS = 32
# Folders that have one folder per stage of a recipe.
_BY_STAGE = ("judged", "marks", "marked", "index")

_NO_TEST = SplitRule(None, 0)


class _FollowedError(Exception):
    """A job that adds the next generation has begun."""


class Checkpoints:
    """Names, readers and writers of one job's checkpoints.

    dtype: of its tokens. rule: of its split, which decides the streams. settings: the job's, to say
    how a job that took its place differs. generation: that it makes of the dataset.
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
        self.chat = settings is not None and settings.chat is not None
        self._settings = settings
        self._generation = generation
        self._mark_stream = rule.streams[-1]
        self._marks = (f"{_suffix(self._mark_stream)}.parquet", ".json")
        self.folder = f"{FOLDER}/{fingerprint}"
        self._fingerprint = fingerprint
        # Tokens of such blocks, which `status` asks for again and again.
        self._counted: dict[TokenBlock, int] = {}

    @classmethod
    def of(cls, storage: Storage, job: Job) -> Checkpoints:
        """The checkpoints of a job in its output folder."""
        settings = job.settings
        return cls(
            storage,
            job.fingerprint(),
            settings.token_dtype,
            settings.split,
            settings,
            job.generation,
        )

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
        if self.storage.size(self._blocks_name(file)) is None:
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

    def parts(self, files: int, layout: Layout) -> list[str]:
        """How the names of many checkpoints begin, to delete them side by side with `clear_part`.

        files: how many the job has. Not all checkpoints are in a part: `clear` follows. No parts if
        there are few, and none on a disk.
        """
        if max(files, layout.windows) <= _NUMBERS_IN_A_PART or not self.storage.composes:
            return []
        folders: list[str] = []
        for folder in self.storage.names(f"{self.folder}/"):
            by_stage = folder.rsplit("/", 2)[-2] in _BY_STAGE
            folders += self.storage.names(folder) if by_stage else [folder]
        count = max(files, layout.windows)
        of_files = _leading_digits(count, 5)
        of_shards = [f"train_{digits}" for digits in _leading_digits(count, layout.index_width)]
        return [
            f"{folder}{leading}"
            for folder in folders
            if folder.endswith("/")
            for leading in (of_shards if folder == f"{self.folder}/shards/" else of_files)
        ]

    def clear_part(self, part: str) -> int:
        """Deletes a part of the checkpoints; returns how many files. Raises as `clear` does."""
        try:
            return self.storage.delete_prefix(part, self._check_last)
        except _FollowedError:
            return self.storage.delete_prefix(part, self.job)

    def _check_last(self) -> None:
        self.job()
        if self.storage.size(job_name(self._generation + 1)) is not None:
            raise _FollowedError

    # -- discovered files

    def write_blocks(
        self, file: int, blocks: list[Block], version: str | None = None, again: bool = False
    ) -> None:
        """Stores the blocks of a file. version: of the file, as they were found.

        again: whether they were stored before, of another version.
        """
        content = json.dumps({"version": version, "blocks": [asdict(block) for block in blocks]})
        name = self._blocks_name(file)
        over = self.storage.version(name) if again else None
        self.storage.write(name, content.encode(), durable=False, over=over)

    def read_blocks(self, file: int) -> list[Block] | None:
        """The blocks of a file, or None if they are not stored yet, or damaged."""
        found = self.read_found(file)
        return found and found[0]

    def write_blocks_together(self, part: int, blocks: dict[int, list[Block]]) -> None:
        """Stores the blocks of many files once more, so that `status` reads few objects.

        part: of the files `[part * FILES_TOGETHER, (part + 1) * FILES_TOGETHER)`.
        """
        first = part * FILES_TOGETHER
        name = f"{self.folder}/files/{first:05d}-{first + FILES_TOGETHER - 1:05d}.json"
        if blocks and self.storage.size(name) is None:
            self.stop_if_replaced(min(blocks))
            content = {file: [astuple(block) for block in blocks[file]] for file in sorted(blocks)}
            self.storage.write(name, json.dumps(content).encode(), durable=False)

    def read_new_blocks(self, known: Collection[int]) -> dict[int, list[Block]]:
        """The blocks of all files whose blocks are stored, but of those that are known."""
        together, files = list[str](), set[int]()
        for name in self.storage.names(f"{self.folder}/files/"):
            match = _FILES_NAME.fullmatch(name.rpartition("/")[2])
            if match and match[2]:
                together.append(name)
            elif match:
                files.add(int(match[1]))
        files.difference_update(known)
        if len(files) < len(together):
            together.clear()
        with ThreadPoolExecutor(_READ_THREADS if self.storage.composes else 1) as pool:
            parts = pool.map(self._read_blocks_together, together)
            stored = {file: blocks for part in parts for file, blocks in part if file in files}
            files.difference_update(stored)
            found = zip(files, pool.map(self.read_blocks, files), strict=True)
            return stored | {file: blocks for file, blocks in found if blocks is not None}

    def _read_blocks_together(self, name: str) -> list[tuple[int, list[Block]]]:
        try:
            stored = [(int(file), blocks) for file, blocks in self._read_json(name).items()]
            found = [(file, [Block(*fields) for fields in blocks]) for file, blocks in stored]
        except JSON_ERRORS:
            return []
        return [(file, blocks) for file, blocks in found if _are_all(blocks, file)]

    def read_found(self, file: int) -> tuple[list[Block], str | None] | None:
        """The blocks of a file, and its version then; that is None in jobs of earlier versions."""
        stored = self._read_json(self._blocks_name(file))
        try:
            # Earlier versions stored the list alone.
            version = None if isinstance(stored, list) else stored["version"]
            listed = stored if isinstance(stored, list) else stored["blocks"]
            blocks = [from_fields(Block, fields) for fields in listed]
            if version is not None:
                as_text(version)
        except JSON_ERRORS:
            return None
        return (blocks, version) if _are_all(blocks, file) else None

    # -- source files that were copied or touched since the job was launched

    def write_versions(self, files: Iterable[SourceFile]) -> None:
        """Stores the identities of those source files whose identity is another one by now."""
        content = {str(file.index): file.to_json() for file in files}
        name = f"{self.folder}/versions.json"
        over = self.storage.version(name)
        if content or over is not None:
            self.storage.write(name, json.dumps(content).encode(), over=over)

    def read_versions(self) -> dict[int, SourceFile]:
        """Those source files whose identity is another one than the job record has, by index."""
        stored = self._read_json(f"{self.folder}/versions.json") or {}
        try:
            return {int(index): SourceFile.from_json(fields) for index, fields in stored.items()}
        except JSON_ERRORS:
            return {}  # The files are refused then, as others than those of the record.

    def files_to_read(self) -> tuple[SourceFile, ...]:
        """The source files that the job reads, as they are now."""
        job, now = self.job(), self.read_versions()
        return tuple(file.as_now(now.get(file.index, file)) or file for file in job.new_files)

    def write_same(self, block: Block, rows: ReadRows) -> None:
        """Records that a block has the rows that it had, in another version of the file."""
        content, name = json.dumps(asdict(rows)).encode(), self._same_name(block)
        self.storage.write(name, content, durable=False, over=self.storage.version(name))

    def read_same(self, block: Block) -> ReadRows | None:
        """The rows that a block has in the version of its file that was read again last."""
        try:
            return ReadRows.from_json(self._read_json(self._same_name(block)))
        except JSON_ERRORS:
            return None

    # -- token blocks

    @contextmanager
    def create_block(self, name: TokenBlock) -> Iterator[BlockWriter]:
        """A token block to write; end the `with` body with the writer's `finish`.

        The document file of the last stream appears last, even if it is empty, so it means that
        the block is finished.
        """

        def create_documents(stream: str) -> pq.ParquetWriter:
            opened = files.enter_context(
                self.storage.create(self.documents_name(name, stream), durable=False)
            )
            return files.enter_context(documents_writer(opened, self.rule, self.chat))

        def open_part(stream: str) -> StreamPart:
            documents = mark if stream == self._mark_stream else create_documents(stream)
            opened = self.storage.create(self.tokens_name(name, stream), durable=False)
            return StreamPart(files.enter_context(opened), documents)

        with ExitStack() as files:
            mark = create_documents(self._mark_stream)
            yield BlockWriter(open_part, mark, name, self.dtype, self.rule)

    def read_summary(
        self, name: TokenBlock, checked: Collection[str] | None = None
    ) -> BlockSummary | None:
        """The summary of a finished block; None if it is missing, incomplete or damaged.

        checked: the streams whose parts are looked at; all by default.
        """
        written = self._read_written(name)
        try:
            mark: Any = written or self._read_mark(name)
            summary = BlockSummary.from_record(mark["summary"])
            checksums = dict(mark["crc32c"])
        except JSON_ERRORS:
            return None
        for stream, sums in zip(self.rule.streams, summary.streams(), strict=True):
            if stream not in checksums or not (checked is None or stream in checked):
                continue
            if written and checked is None and self.part_tokens(name, stream) is None:
                continue
            if not self._is_complete(name, stream, sums.tokens, checksums[stream]):
                return None
        return summary

    def _read_mark(self, name: TokenBlock) -> dict[str, Any] | None:
        """The summary of a finished block, and the checksums of its tokens by stream."""
        mark = self.documents_name(name, self._mark_stream)
        if self.storage.size(mark) is None:
            return None
        try:
            with self.storage.open(mark) as file:
                metadata = pq.read_metadata(file).metadata
            summary, checksums = metadata[SUMMARY_KEY], metadata[CHECKSUM_KEY]
            return {"summary": json.loads(summary), "crc32c": json.loads(checksums)}
        except (pa.ArrowException, OSError, *JSON_ERRORS):
            return None

    # -- token blocks whose tokens are in finished shards

    def drop_part(self, name: TokenBlock, stream: str) -> None:
        """Deletes a block's part; what a restart needs of the block stays, in a small record.

        For a part whose tokens are all in finished shards.
        """
        if self._read_written(name) is None:
            try:
                mark = self._read_mark(name)
            except OutputError:
                return  # another worker has dropped another part meanwhile, and its mark
            if mark is None:
                return
            self.storage.write(self._written_name(name), json.dumps(mark).encode(), durable=False)
        # The tokens first: without them the part is known to be dropped.
        self.storage.delete(self.tokens_name(name, stream))
        self.storage.delete(self.documents_name(name, stream))

    def part_tokens(self, name: TokenBlock, stream: str) -> int | None:
        """The number of tokens of a block's part; None if they are dropped."""
        size = self.storage.size(self.tokens_name(name, stream))
        return None if size is None else size // self.dtype.itemsize

    def _tokens_written(self, name: TokenBlock) -> int:
        """The number of tokens of a block whose record says that its parts are dropped."""
        if name not in self._counted:
            with suppress(OutputError):  # a job that ends deletes it meanwhile
                record = self._read_written(name)
                self._counted[name] = record["summary"]["tokens"] if record else 0
        return self._counted.get(name, 0)

    def dropped_summary(self, name: TokenBlock) -> BlockSummary | None:
        """The summary of a block of which parts were dropped; None of any other."""
        written = self._read_written(name)
        try:
            return BlockSummary.from_record(written["summary"]) if written else None
        except JSON_ERRORS:
            return None

    def _read_written(self, name: TokenBlock) -> dict[str, Any] | None:
        return None if self.storage.composes else self._read_json(self._written_name(name))

    def _is_complete(self, name: TokenBlock, stream: str, tokens: int, checksum: int) -> bool:
        """Whether a part of a finished block is there and, on a disk, has its checksums."""
        documents_name = self.documents_name(name, stream)
        tokens_name = self.tokens_name(name, stream)
        if self.storage.size(documents_name) is None:
            return False
        if not self.is_whole(tokens_name, tokens * self.dtype.itemsize, checksum):
            return False
        if self.storage.verifies_content:
            return True
        try:
            with self.storage.open(documents_name) as file:
                for _ in open_parquet(file).iter_batches(use_threads=False):
                    pass
        except (pa.ArrowException, OSError):
            return False
        return True

    def is_whole(self, name: str, size: int, checksum: int) -> bool:
        """Whether a file has its size and, on a disk, its checksum."""
        if self.storage.size(name) != size:
            return False
        if self.storage.verifies_content:
            return True
        with self.storage.open(name) as file:
            return file_checksum(file) == checksum

    def read_documents(self, name: TokenBlock, stream: str, start: int, stop: int) -> pa.Table:
        """The documents of a block's part that have tokens in `[start, stop)`.

        Row groups without such documents are not read.
        """
        # Arrow's filters could do this, but take a fifth of a second to import.
        with self.storage.open(self.documents_name(name, stream), _DOCUMENT_BYTES) as opened:
            parquet = open_parquet(opened)
            groups = [
                group
                for group in range(parquet.num_row_groups)
                if parquet.metadata.row_group(group).num_rows
                and _statistics(parquet, group, "offset").min < stop
                and _statistics(parquet, group, "end").max > start
            ]
            table = parquet.read_row_groups(groups, use_threads=False)
        first = np.searchsorted(table["end"].to_numpy(), start, side="right")
        last = np.searchsorted(table["offset"].to_numpy(), stop, side="left")
        return table.slice(first, last - first)

    # -- sorted token blocks, where documents are shuffled: see runs.py

    @contextmanager
    def create_runs(
        self, name: TokenBlock, shuffle: Shuffle, run_bytes: int, bits: int | None = None
    ) -> Iterator[RunWriter]:
        """A sorted token block to write; end the `with` body with the writer's `finish`."""
        with (
            self.storage.create(self.tokens_name(name), durable=False) as tokens,
            self.storage.create(self._cells_name(name), durable=False) as documents,
        ):
            writer = RunWriter(
                name, tokens, documents, self.dtype, self.rule, shuffle, run_bytes, bits
            )
            yield writer
        mark = json.dumps(writer.mark()).encode()
        self.storage.write(self._runs_name(name), mark, durable=False)

    def read_runs(self, name: TokenBlock) -> BlockSummary | None:
        """The summary of a finished sorted block; None if it is missing, incomplete or damaged."""
        record = self._read_json(self._runs_name(name))
        try:
            for file, kind in (
                (self.tokens_name(name), "tokens"),
                (self._cells_name(name), "documents"),
            ):
                if not self.is_whole(file, record["bytes"][kind], record["crc32c"][kind]):
                    return None
            return BlockSummary.from_record(record)
        except JSON_ERRORS:
            return None

    def read_fragment(self, fragment: Fragment) -> Documents:
        """The documents of a fragment."""
        size = self.dtype.itemsize
        content = self.storage.read_range(
            self._cells_name(fragment.block), fragment.first_byte, fragment.last_byte
        )
        lengths, sources = parse_cells(content, self.rule, self.chat)
        tokens = self.storage.read_range(
            self.tokens_name(fragment.block), fragment.start * size, fragment.stop * size
        )
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Documents(np.frombuffer(tokens, self.dtype), offsets, sources)

    # -- names

    def tokens_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        """The file of the tokens of a block's part."""
        return f"{self._part_name(name, stream)}.tokens"

    def documents_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        """The file of the documents of a block's part."""
        return f"{self._part_name(name, stream)}.parquet"

    def _cells_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}.documents"

    def _runs_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}.json"

    def _written_name(self, name: TokenBlock) -> str:
        return f"{self._part_name(name)}{_WRITTEN}"

    def _part_name(self, name: TokenBlock, stream: str = ONE_STREAM) -> str:
        return f"{self.folder}/{name.folder}/{name.file:05d}-{name.index:05d}{_suffix(stream)}"

    def finished_blocks(
        self, folder: str = "blocks", files: int = 0
    ) -> dict[tuple[int, int], tuple[int, float]]:
        """The token count and completion time of each finished block, by (file, block).

        folder: `blocks`, or `buckets`, whose blocks are those of documents in random order. files:
        how many source files there are, to list the blocks of many side by side; 0 for not known.
        """
        sizes: dict[tuple[int, int], int] = defaultdict(int)
        times: dict[tuple[int, int], float] = {}
        written: dict[tuple[int, int], int] = {}
        listed = self.storage.entries_by_beginning(f"{self.folder}/{folder}", beginnings(files))
        for entry in listed:
            key = block_of(entry.name)
            if key is None:
                continue
            if entry.name.endswith(".tokens"):
                sizes[key] += entry.size
            elif entry.name.endswith(self._marks):
                times[key] = min(entry.modified, times.get(key, entry.modified))
            if entry.name.endswith(_WRITTEN):
                written[key] = self._tokens_written(TokenBlock(folder, *key))
        tokens = {key: sizes[key] // self.dtype.itemsize for key in times} | written
        return {key: (tokens[key], time) for key, time in times.items()}

    def finished_shards(self) -> list[float]:
        """The completion times of the finished shards, in any order."""
        return [entry.modified for entry in self.storage.entries(f"{self.folder}/shards")]

    def has_finished_blocks(self) -> bool:
        """Whether any block is finished, or judged in a stage of a recipe."""
        if any(True for _ in self.storage.entries(f"{self.folder}/judged")):
            return True
        entries = self.storage.entries(f"{self.folder}/blocks")
        return any(block_of(each.name) and each.name.endswith(self._marks) for each in entries)

    # -- plan and shards

    def write_layout(self, layout: Layout) -> None:
        """Stores the layout, which `status` reads."""
        content = json.dumps(asdict(layout)).encode()
        self.storage.write(self._plan_name(), content, durable=False)

    def read_layout(self) -> Layout | None:
        """The layout, or None if it is not planned yet, or damaged."""
        try:
            return from_fields(Layout, self._read_json(self._plan_name()))
        except JSON_ERRORS:
            return None

    def planned_at(self) -> float:
        """When the layout was stored; 0 if it is not there any more. Only on object storage."""
        entries = self.storage.entries_by_beginning(self.folder, ["plan.json"])
        return max((entry.modified for entry in entries), default=0.0)

    def write_shard_record(self, record: ShardRecord, durable: bool = False) -> None:
        """Marks a shard as finished. durable: whether a power cut must leave it."""
        content = json.dumps(asdict(record)).encode()
        self.storage.write(self._shard_name(record.name), content, durable)

    def read_shard_record(self, shard_name: str) -> ShardRecord | None:
        """The record of a finished shard; None if the shard or its table is not complete.

        Also None for a record of version 0.1.0, which lacks the numbers of the table.
        """
        fields = self._read_json(self._shard_name(shard_name))
        if fields is None:
            return None
        try:
            record = from_fields(ShardRecord, dict.fromkeys(RARE) | fields)
        except JSON_ERRORS:
            return None
        files = record.files()
        return record if all(self.storage.size(name) == size for name, size, _ in files) else None

    def discard_misnamed(self, layout: Layout) -> None:
        """Deletes shards whose names have not as many digits as those of a layout.

        They were written before anyone knew how many there would be, and are made again.
        """
        if self.storage.composes:
            return
        for entry in list(self.storage.entries(f"{self.folder}/shards")):
            found = _SHARD_RECORD.search(entry.name)
            if found is not None and len(found[2]) != layout.index_width:
                # The record last, by which a restart finds the rest.
                for name in (*files_of(f"{found[1]}/{found[1]}_{found[2]}.npy"), entry.name):
                    self.storage.delete(name)

    def _read_json(self, name: str) -> Any:
        """The content of a file; None if it is missing, or damaged by a power cut."""
        content = self.storage.read_if_there(name)
        try:
            return None if content is None else json.loads(content)
        except (RecursionError, ValueError):
            return None

    def _blocks_name(self, file: int) -> str:
        return f"{self.folder}/files/{file:05d}.json"

    def _same_name(self, block: Block) -> str:
        return f"{self.folder}/same/{block.file:05d}-{block.index:05d}.json"

    def _plan_name(self) -> str:
        return f"{self.folder}/plan.json"

    def _shard_name(self, shard_name: str) -> str:
        return f"{self.folder}/shards/{shard_stem(shard_name)}.json"


def _are_all(blocks: list[Block], file: int) -> bool:
    """Whether blocks are those of a file, in order."""
    places = [(block.file, block.index, block.blocks) for block in blocks]
    return places == [(file, index, len(blocks)) for index in range(len(blocks))]


def _statistics(parquet: pq.ParquetFile, group: int, column: str) -> Any:
    index = parquet.schema_arrow.get_field_index(column)
    return parquet.metadata.row_group(group).column(index).statistics


def block_of(name: str) -> tuple[int, int] | None:
    """The (file, block) whose checkpoint has a name; None for a name that no block has."""
    found = _BLOCK_NAME.fullmatch(name.rpartition("/")[2])
    return found and (int(found[1]), int(found[2]))


def beginnings(files: int) -> list[str]:
    """How the names of checkpoints of many source files begin: with all but two digits."""
    if not _NUMBERS_IN_A_PART < files <= 100_000:  # with more, 1000 begins 10000
        return [""]
    return _leading_digits(files, 5)


def _leading_digits(count: int, width: int) -> list[str]:
    """All but the last two digits of the numbers below `count`, each once."""
    numbers = range(0, count, _NUMBERS_IN_A_PART)
    return list(dict.fromkeys(f"{number:0{width}d}"[:-2] for number in numbers))


def _suffix(stream: str) -> str:
    """What distinguishes the parts of a block in their names."""
    return "" if stream == ONE_STREAM else f".{stream}"
