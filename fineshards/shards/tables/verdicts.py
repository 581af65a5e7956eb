"""What the ledger has of the stages of a recipe, in addition to what `checkpoints.py` names.

    judged/0/00003-00012.json    what stage 0 decided about the rows of a block, and what it counted
    judged/0/00003-00012.keys    the keys of the documents that are left, sorted
    marked/0/00003.json          the documents of a source file that are duplicates, as decisions

    marks/0/…                    marks, several kinds in a file:
            00005-of-00016       of a range of keys, sorted by position: which documents have a key
                                 of an earlier one; if texts are compared, the candidates per file
            00003-sets           the contents of candidates of source file 3, in parts, for each
                                 file that wants some
            00003-compared       the documents of source file 3 that are like a candidate
            00003-index          the keys of an index of other documents

The last stage, which ends with Tokenize, has no keys. Its decisions are written before its token
block. Tables in entries are Parquet files.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.ledger import Kind, Range
from fineshards.shards.parquet_file import read_table
from fineshards.shards.record import Count, Record
from fineshards.shards.tables import scores as score_tables
from fineshards.shards.tables.decisions import SCHEMA as DECISIONS
from fineshards.shards.tables.decisions import Decisions, merged, to_bytes
from fineshards.shards.tables.marks import Records
from fineshards.shards.tables.statistics import SCHEMA
from fineshards.shards.token_blocks import block_of
from fineshards.storage.checksums import crc32c

# Keys or marks: their kind; and their file, start and stop, or the bytes themselves. What crosses a
# shuffle is plain: Beam knows how to code tuples.
Slice = tuple[str, str, int, int, bytes | None]
# MARKS say which documents have a key of earlier ones, or are like them.
MARKS, WANTED, SETS = "marks", "wanted", "sets"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of sorted keys.

    count: how many there are. crc32c: to be checked when the file is read; None where it has been.
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


class Judged(Record, frozen=True):
    """What a stage decided about a block: see StageFiles.write_block. keys: how many there are."""

    decisions: bytes
    scores: bytes | None
    statistics: dict[str, list[str | int | None]]
    keys: Count
    stop_row: Count

    def counted(self) -> pa.Table:
        """What was counted with the decisions."""
        return pa.table(self.statistics, SCHEMA) if self.statistics else SCHEMA.empty_table()


class StageFiles:
    """What the ledger of a job has of one stage. number: from 0."""

    def __init__(self, checkpoints: Checkpoints, number: int) -> None:
        self._storage = checkpoints.storage
        self._ledger = checkpoints.ledger
        self.number = number
        self._judged = Kind(f"judged/{number}", Judged)
        self._marks = Kind(f"marks/{number}", dict[str, Range])
        self._marked = Kind(f"marked/{number}", bytes)

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
        ranges = []
        if keys is not None:
            name, content = self.keys_file(block), keys.tobytes()
            checksum = self._storage.write(name, content, durable=False)
            ranges.append(Range(name, 0, len(content), checksum))
        judged = Judged(
            decisions=to_bytes(merged(tables)),
            scores=None if scores is None else score_tables.to_bytes(scores),
            statistics={} if statistics is None else statistics.to_pydict(),
            keys=0 if keys is None else len(keys),
            stop_row=stop_row,
        )
        self._ledger.put(self._judged, block.place.key, ranges, judged)

    def read_block(self, block: Block) -> Judged | None:
        """What is stored of a judged block; None if it is missing, incomplete or damaged."""
        return self._ledger.get(self._judged, block.place.key)

    def judged(self, block: Block) -> Judged:
        """What this job has stored of a judged block; raises OutputError if it is not there."""
        return self._ledger.finished(self._judged, block.place.key).record

    def decided(self, block: Block) -> tuple[pa.Table, int]:
        """What the stage decided about a block, and its `stop_row`; raises as `judged` does."""
        judged = self.judged(block)
        return read_table(judged.decisions, self._judged.name, DECISIONS), judged.stop_row

    def scores(self, block: Block) -> pa.Table:
        """What the stage's scorers gave the documents of a block; raises as `judged` does."""
        return score_tables.from_bytes(self.judged(block).scores or b"", self._judged.name)

    def judged_blocks(self, files: int) -> dict[tuple[int, int], float]:
        """When each judged block was finished, by (file, block). files: as in `finished_blocks`."""
        times = self._ledger.list(self._judged, files)
        return {block: time for key, time in times.items() if (block := block_of(key))}

    def marked_files(self) -> list[float]:
        """When the marks of each source file were stored, in any order."""
        return list(self._ledger.list(self._marked).values())

    def keys_file(self, block: Block) -> str:
        """The file of the keys of a block."""
        return self._ledger.name(self._judged, block.place.key, "keys")

    def write_marks(self, key: str, marks: Iterable[tuple[str, Records]]) -> dict[str, Range]:
        """Stores marks of a range of keys, comparison or index; returns their places by kind."""
        name, stop, places = self._ledger.name(self._marks, key, "marks"), 0, {}
        with self._storage.create(name, durable=False) as file:
            for kind, records in marks:
                content = records.tobytes()
                file.write(content)
                start, stop = stop, stop + len(content)
                places[kind] = Range(name, start, stop, crc32c(content))
        self._ledger.put(self._marks, key, places.values(), places)
        return places

    def read_marks(self, key: str) -> dict[str, Range] | None:
        """The places of stored marks; None if they are missing or damaged."""
        return self._ledger.get(self._marks, key)

    def write_marked(self, file: int, table: pa.Table) -> None:
        """Stores the marks of a source file as decisions."""
        self._ledger.put(self._marked, f"{file:05d}", (), to_bytes(table))

    def has_marked(self, file: int) -> bool:
        """Whether the marks of a source file are stored, undamaged."""
        return self._ledger.get(self._marked, f"{file:05d}") is not None

    def marked(self, file: int) -> pa.Table:
        """The marks of a source file as decisions; raises OutputError if they are not there."""
        entry = self._ledger.finished(self._marked, f"{file:05d}")
        return read_table(entry.record, self._marked.name, DECISIONS)


def earlier_decisions(
    checkpoints: Checkpoints, block: Block, stage: int, marked: Callable[[int, int], pa.Table]
) -> Decisions:
    """The decisions about a block's rows before a stage. marked: of (stage, file)."""
    tables = []
    for number in range(stage):
        judged, stop_row = StageFiles(checkpoints, number).decided(block)
        of_file = marked(number, block.file)
        # A file may have many blocks, and none may take the time of all its marks.
        bounds = [block.first_row, stop_row]
        first, last = np.searchsorted(of_file["row"].to_numpy(), bounds).tolist()
        tables += [judged, of_file.slice(first, max(last - first, 0))]
    return Decisions(merged(tables))
