"""Checkpoints of the stages of a recipe, beside those of `checkpoints.py`.

    judged/0/00003-00012.decisions         what stage 0 decided about the rows of a block, and what
                                           it counted, as JSON in the metadata; later than the keys,
                                           so it marks the block as judged
    judged/0/00003-00012.keys              the keys of the documents that are left, sorted
    judged/0/00003-00012.scores            what scorers gave documents; earlier than the decisions
    marks/0/00005-of-00016.marks           which documents have a key of an earlier one, by range
                                           of keys, sorted by position
    marks/0/00005-of-00016-firsts.marks    the first of each key that a block has very often
    marks/0/00005-of-00016-wanted.marks    if texts are compared: the candidates per file
    marks/0/00003-of-00000-sets.marks      the contents of candidates of source file 3, part 0
    marks/0/00003-of-00000-parts.marks     the parts that each file wants
    marks/0/00003-of-00000-compared.marks  the documents of source file 3 that are like a candidate
    marked/0/00003.decisions               the same by source file, as decisions
    index/0/00003.keys                     the keys of an index of other documents

The last stage, which ends with Tokenize, has no keys. Its decisions are written before its token
block. As other checkpoints, these may be damaged by a power cut: a restart checks them. All but the
keys of blocks are records; decisions and scores are Parquet files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.checkpoint_file import (
    beginnings,
    block_of,
    is_whole,
    read_record,
    whole_record,
    write_record,
)
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.tables import scores as score_tables
from fineshards.shards.tables.decisions import Decisions, from_bytes, merged, to_bytes
from fineshards.shards.tables.marks import Records
from fineshards.shards.tables.statistics import SCHEMA

# Bytes of a file, of keys or of marks: the file's name, start and stop; or the bytes themselves,
# with their kind as the name. What crosses a shuffle is plain: Beam knows how to code tuples.
Range = tuple[str, int, int, bytes | None]
# How the name of a file ends that has other marks than which documents have a key of earlier ones.
FIRSTS, WANTED, SETS, PARTS, COMPARED = "-firsts", "-wanted", "-sets", "-parts", "-compared"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of sorted keys.

    count: how many there are. crc32c: to be checked when the file is read; None for a checkpoint,
    which has been.
    """

    name: str
    count: int
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class JudgedBlock:
    """A block that a stage has judged. keys: those of the documents that are left."""

    file: SourceFile
    block: Block
    keys: KeyFile


def is_of(found: Range, kind: str) -> bool:
    """Whether marks are of a kind."""
    return found[0].removesuffix(".marks").endswith(kind)


class StageFiles:
    """The checkpoints of one stage of a job. number: from 0."""

    def __init__(self, checkpoints: Checkpoints, number: int) -> None:
        self._checkpoints = checkpoints
        self._storage = checkpoints.storage
        self._folder = checkpoints.folder
        self.number = number

    # -- judged blocks

    def write_block(
        self,
        block: Block,
        tables: Sequence[pa.Table],
        keys: Records | None,
        statistics: pa.Table | None = None,
        stop_row: int = 0,
        scores: pa.Table | None = None,
    ) -> None:
        """Stores what the stage decided about a block, and the keys of the documents left.

        statistics: what was counted meanwhile; None for nothing. stop_row: one more than the
        number of the block's last row, for the stages that follow. scores: None if the stage has no
        scorers.
        """
        metadata = {"keys": "0", "crc32c": "0"}
        if keys is not None:
            content = keys.tobytes()
            checksum = self._storage.write(self.keys_file(block), content, durable=False)
            metadata = {"keys": str(len(keys)), "crc32c": str(checksum)}
        if scores is not None:
            content = score_tables.to_bytes(scores)
            write_record(self._storage, self._block_name(block, "scores"), content)
            metadata["scores"] = "1"
        metadata["stop_row"] = str(stop_row)
        if statistics is not None:
            metadata["statistics"] = json.dumps(statistics.to_pydict())
        write_record(self._storage, self._block_name(block), to_bytes(merged(tables), metadata))

    def read_block(self, block: Block, key_type: np.dtype[np.void] | None) -> int | None:
        """The number of keys of a judged block; None if it is missing, incomplete or damaged."""
        name = self._block_name(block)
        content = read_record(self._storage, name)
        if content is None:
            return None
        metadata = from_bytes(content, name).schema.metadata
        scores = self._block_name(block, "scores")
        if b"scores" in metadata and read_record(self._storage, scores) is None:
            return None
        count = int(metadata[b"keys"])
        if key_type is None:
            return count
        size, checksum = count * key_type.itemsize, int(metadata[b"crc32c"])
        return count if is_whole(self._storage, self.keys_file(block), size, checksum) else None

    def decisions(self, block: Block) -> pa.Table:
        """What the stage decided about a block; raises OutputError if it is not there."""
        return self._decisions(self._block_name(block))

    def scores(self, block: Block) -> pa.Table:
        """What the stage's scorers gave the documents of a block; raises as `decisions` does."""
        name = self._block_name(block, "scores")
        return score_tables.from_bytes(whole_record(self._storage, name), self._storage.path(name))

    def statistics(self, block: Block) -> pa.Table:
        """What was counted with the decisions about a block."""
        stored = (self.decisions(block).schema.metadata or {}).get(b"statistics")
        if stored is None:
            return SCHEMA.empty_table()
        return pa.table(json.loads(stored), schema=SCHEMA)

    def judged_blocks(self, files: int) -> dict[tuple[int, int], float]:
        """When each judged block was finished, by (file, block). files: as in `finished_blocks`."""
        found, folder = {}, self._name("judged", "").rstrip("/")
        for entry in self._storage.entries_by_beginning(folder, beginnings(files)):
            key = block_of(entry.name)
            if key is not None and entry.name.endswith(".decisions"):
                found[key] = entry.modified
        return found

    def marked_files(self) -> list[float]:
        """When the marks of each source file were stored, in any order."""
        folder = self._name("marked", "").rstrip("/")
        return [entry.modified for entry in self._storage.entries(folder)]

    # -- keys of documents that others have

    def write_index(self, number: int, keys: Records) -> KeyFile:
        """Stores the keys of an index, sorted."""
        name = self._name("index", f"{number:05d}.keys")
        write_record(self._storage, name, keys.tobytes())
        return KeyFile(name, len(keys))

    def read_index(self, number: int, key_type: np.dtype[np.void]) -> KeyFile | None:
        """The stored keys of an index; None if they are missing or damaged."""
        name = self._name("index", f"{number:05d}.keys")
        content = read_record(self._storage, name)
        return None if content is None else KeyFile(name, len(content) // key_type.itemsize)

    # -- marks by range of keys

    def write_marks(
        self, partition: int, partitions: int, marks: npt.NDArray[Any], kind: str = ""
    ) -> None:
        """Stores the marks of a range of keys, or the links; or others, of a kind."""
        write_record(self._storage, self.marks_file(partition, partitions, kind), marks.tobytes())

    def read_marks(
        self, partition: int, partitions: int, dtype: npt.DTypeLike, kind: str = ""
    ) -> Records | None:
        """Stored marks; None if they are missing or damaged."""
        content = read_record(self._storage, self.marks_file(partition, partitions, kind))
        return None if content is None else np.frombuffer(content, dtype)

    def marks_file(self, partition: int, partitions: int, kind: str = "") -> str:
        """The file of the marks of a range of keys, or of others."""
        return self._name("marks", f"{partition:05d}-of-{partitions:05d}{kind}.marks")

    # -- marks by file

    def write_marked(self, file: int, table: pa.Table) -> None:
        """Stores the marks of a source file as decisions."""
        write_record(self._storage, self._marked_name(file), to_bytes(table))

    def has_marked(self, file: int) -> bool:
        """Whether the marks of a source file are stored, undamaged."""
        return read_record(self._storage, self._marked_name(file)) is not None

    def marked(self, file: int) -> pa.Table:
        """The marks of a source file as decisions; raises OutputError if they are not there."""
        return self._decisions(self._marked_name(file))

    def _decisions(self, name: str) -> pa.Table:
        return from_bytes(whole_record(self._storage, name), self._storage.path(name))

    # -- names

    def _name(self, kind: str, name: str) -> str:
        return f"{self._folder}/{kind}/{self.number}/{name}"

    def _block_name(self, block: Block, kind: str = "decisions") -> str:
        return self._name("judged", f"{block.file:05d}-{block.index:05d}.{kind}")

    def keys_file(self, block: Block) -> str:
        """The file of the keys of a block."""
        return self._block_name(block, "keys")

    def _marked_name(self, file: int) -> str:
        return self._name("marked", f"{file:05d}.decisions")


def earlier_decisions(
    checkpoints: Checkpoints, block: Block, stage: int, marked: Callable[[int, int], pa.Table]
) -> Decisions:
    """The decisions about a block's rows before a stage.

    marked: the marks of a source file after a stage: (stage, file) to decisions.
    """
    tables = []
    for number in range(stage):
        own, of_file = StageFiles(checkpoints, number).decisions(block), marked(number, block.file)
        # A file may have many blocks, and none may take the time of all its marks.
        bounds = [block.first_row, int(own.schema.metadata[b"stop_row"])]
        first, last = np.searchsorted(of_file["row"].to_numpy(), bounds).tolist()
        tables += [own, of_file.slice(first, max(last - first, 0))]
    return Decisions(merged(tables))
