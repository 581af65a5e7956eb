"""What the stages of a recipe do to the rows of blocks. No Beam."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.curator import Curator, Judged
from fineshards.curation.step import Keyed, Keys
from fineshards.curation.steps.other_datasets import SeenIn
from fineshards.shards.counts import Counts
from fineshards.shards.job.curated_files import decisions_name, keys_name, scores_name
from fineshards.shards.job.records import Block, MetadataFile, SourceFile
from fineshards.shards.tables import scores
from fineshards.shards.tables.decisions import Decisions, merged, read_decisions, to_bytes
from fineshards.shards.tables.marks import Records, key_records, positions
from fineshards.shards.tables.rejected_rows import Rejected
from fineshards.shards.tables.statistics import Tally
from fineshards.shards.tables.verdicts import JudgedBlock, KeyFile, StageFiles, earlier_decisions
from fineshards.sources.reading import read_block
from fineshards.sources.rows import Rows
from fineshards.storage.checksums import checksum_to_base64
from fineshards.worker.comparing import Comparing
from fineshards.worker.indexes import index_records, key_type
from fineshards.worker.kept_rows import batch_of, survivors
from fineshards.worker.marking import Marking
from fineshards.worker.work import Work

# Files whose marks are kept in memory: a worker goes from block to block of the same file.
_FILES_KEPT = 4


class Judging:
    """The stages of a job's recipe, in one process."""

    def __init__(self, work: Work) -> None:
        assert work.settings.recipe is not None
        self._work = work
        self._recipe = work.settings.recipe
        self._marked = lru_cache(_FILES_KEPT)(self._read_marked)
        # By stage: what they read of the job's record is kept.
        self.marking = lru_cache(self._marking)
        self.comparing = lru_cache(self._comparing)
        self._decisions = lru_cache(_FILES_KEPT)(partial(read_decisions, work.checkpoints.storage))

    @cached_property
    def curator(self) -> Curator:
        """The steps, checked against the job's record."""
        return Curator.of(self._recipe)

    def _marking(self, stage: int) -> Marking:
        """The keyed step that ends a stage."""
        return Marking(self._work, self.curator, stage)

    def _comparing(self, stage: int) -> Comparing:
        """The keyed step that ends a stage, which compares texts."""
        return Comparing(self._work, self.curator, stage, self._marked)

    def judge_block(self, file: SourceFile, block: Block, number: int) -> tuple[JudgedBlock, bool]:
        """Judges the rows of a block in a stage that ends with a keyed step.

        Returns the judged block, and whether an earlier run had judged it.
        """
        stage, keyed = self._stage(number), self.curator.keyed(number)
        found = stage.read_block(block)
        keys_file = stage.keys_file(block)
        if found is not None:
            return JudgedBlock(file, block, KeyFile(keys_file, found.keys)), True
        self._work.checkpoints.stop_if_replaced(file.index)
        earlier = earlier_decisions(self._work.checkpoints, block, number, self._marked)
        known = self._scores([block], range(number))
        tables: list[pa.Table] = []
        found_scores: list[pa.Table] = []
        keys: list[Keys] = []
        rows_of_keys: list[npt.NDArray[np.int64]] = []
        rejected = Rejected(file, self._work.max_bad_rows)
        tally, stop_row = Tally(), block.first_row
        for rows in read_block(file, self._work.settings.columns, block):
            rejected.add(rows.bad)
            stop_row = max(stop_row, int(rows.numbers.max(initial=-1)) + 1)
            there = rows.with_text()
            judged = self.curator.judge(batch_of(there, file), number, earlier, tally, known)
            tables += judged.dropped
            found_scores += judged.scores
            assert judged.keys is not None
            keys.append(judged.keys)
            rows_of_keys.append(judged.kept.rows[judged.keys.owners])
        records = _key_records(keyed, file, keys, rows_of_keys)
        given = self._joined(found_scores, [number])
        stage.write_block(block, tables, records, tally.table(), stop_row, given)
        return JudgedBlock(file, block, KeyFile(keys_file, len(records))), False

    def last_stage(self, read: Iterable[Rows], file: SourceFile, block: Block) -> Iterator[Rows]:
        """The rows of a block that all steps keep, with the texts that are tokenized.

        Rows that are dropped are counted in `dropped` of the rows they came with. Stores the
        decisions of the last stage when the rows are read to their end.
        """
        last = self.curator.stages - 1
        earlier = earlier_decisions(self._work.checkpoints, block, last, self._marked)
        known = self._scores([block], range(last))
        tables: list[pa.Table] = []
        found_scores: list[pa.Table] = []
        tally = Tally()
        for rows in read:
            found = rows.with_text()
            judged = self.curator.judge(batch_of(found, file), last, earlier, tally, known)
            tables += judged.dropped
            found_scores += judged.scores
            yield _survivors(rows, found, judged, earlier)
        given = self._joined(found_scores, [last])
        self._stage(last).write_block(block, tables, None, tally.table(), scores=given)

    def decided(self, rows: Rows, file: SourceFile) -> Rows:
        """The rows with text that became documents of a finished dataset, with their texts."""
        batch, decisions = batch_of(rows, file), self._decisions(file.index)
        batch = batch.keep(~decisions.are_dropped(batch.rows))
        return survivors(rows, self.curator.texts(batch, decisions))

    def has_last_stage(self, block: Block) -> bool:
        """Whether the decisions of the last stage about a block are stored, undamaged."""
        return self._stage(self.curator.stages - 1).read_block(block) is not None

    def index_keys(self, file: SourceFile, number: int) -> KeyFile:
        """The keys of documents that others have, for the keyed step that ends a stage.

        Raises InputError if the file has changed since the job was launched.
        """
        stage, keyed = self._stage(number), self.curator.keyed(number)
        key, places = f"{file.index:05d}-index", stage.read_marks(f"{file.index:05d}-index")
        if places is None:
            settings = self._work.settings
            records = index_records(keyed, file, settings.columns, settings.block_bytes)
            places = stage.write_marks(key, [("keys", records)])
        place = places["keys"]
        return KeyFile(place.file, place.stop // key_type(keyed).itemsize)

    def statistics(self, file: int) -> list[pa.Table]:
        """What all stages counted of a source file, block by block."""
        blocks = self._work.checkpoints.discovered.read_blocks(file) or []
        stages = map(self._stage, range(self.curator.stages))
        return [stage.judged(block).counted() for stage in stages for block in blocks]

    def write_decisions(self, file: int) -> list[MetadataFile]:
        """Writes a source file's decisions and scores, if any, and its keys, if they are kept."""
        checkpoints, last = self._work.checkpoints, self.curator.stages - 1
        blocks = checkpoints.discovered.read_blocks(file) or []
        tables, written = [], []
        for number in range(last + 1):
            stage = self._stage(number)
            tables += [stage.decided(block)[0] for block in blocks]
            if number < last:
                tables.append(stage.marked(file))
        table = merged(tables)
        if len(table):
            written.append(self._write(decisions_name(file), to_bytes(table)))
        given = self._scores(blocks, range(last + 1))
        if given is not None and len(given):
            written.append(self._write(scores_name(file), scores.to_bytes(given)))
        if self._recipe.keep_keys:
            for number in range(last):
                if isinstance(self.curator.keyed(number), SeenIn):
                    continue
                name = keys_name(file, self.curator.number_of_keyed(number))
                written.append(self._write(name, self._keys_of_file(blocks, number)))
        return written

    def _scores(self, blocks: Sequence[Block], stages: Sequence[int]) -> pa.Table | None:
        """What some stages gave the documents of blocks; None if they have no scorers."""
        with_scorers = [self._stage(n) for n in stages if self.curator.score_schema([n])]
        tables = [stage.scores(block) for stage in with_scorers for block in blocks]
        return self._joined(tables, stages)

    def _joined(self, tables: Sequence[pa.Table], stages: Sequence[int]) -> pa.Table | None:
        """Scores of some stages in one table; None if they have no scorers."""
        schema = self.curator.score_schema(stages)
        return None if schema is None else scores.joined(tables, schema)

    def _keys_of_file(self, blocks: Sequence[Block], number: int) -> bytes:
        """All keys of a file for the keyed step that ends a stage, sorted."""
        storage, stage = self._work.checkpoints.storage, self._stage(number)
        content = b"".join(storage.read(stage.keys_file(block)) for block in blocks)
        records = np.frombuffer(content, key_type(self.curator.keyed(number)))
        spans = records["span"] if "span" in (records.dtype.names or ()) else None
        return key_records(records["key"], records["position"], spans).tobytes()

    def _write(self, name: str, content: bytes) -> MetadataFile:
        checksum = self._work.checkpoints.storage.write(name, content)
        return MetadataFile(name, len(content), checksum_to_base64(checksum))

    def _stage(self, number: int) -> StageFiles:
        return StageFiles(self._work.checkpoints, number)

    def _read_marked(self, number: int, file: int) -> pa.Table:
        return self._stage(number).marked(file)


def _survivors(read: Rows, found: Rows, judged: Judged, earlier: Decisions) -> Rows:
    """As `survivors`, with the counts of the rows that are left out."""
    dropped = [
        decisions.count_dropped(found.numbers, found.texts, found.labels.get("dump"))
        for decisions in (earlier, Decisions(merged(judged.dropped)))
    ]
    there = survivors(found, judged.kept)
    return replace(there, nulls=read.texts.null_count, dropped=Counts.total(dropped))


def _key_records(
    keyed: Keyed, file: SourceFile, keys: Sequence[Keys], rows: Sequence[npt.NDArray[np.int64]]
) -> Records:
    """The keys of several batches, whose documents are in the given rows, as sorted records."""
    if not keys:
        return np.empty(0, key_type(keyed))
    spans = [each.spans for each in keys if each.spans is not None]
    return key_records(
        np.concatenate([each.keys for each in keys]),
        positions(file.index, np.concatenate(rows)),
        np.concatenate(spans) if spans else None,
    )
