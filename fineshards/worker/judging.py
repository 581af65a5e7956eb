"""What the stages of a recipe do to the rows of blocks. No Beam."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial

import numpy as np
import pyarrow as pa

from fineshards.curation.curator import Curator
from fineshards.curation.steps.other_datasets import SeenIn
from fineshards.shards.counts import Rejected
from fineshards.shards.job.records import Block, MetadataFile, SourceFile, write_metadata
from fineshards.shards.layout import file_table, keys_name
from fineshards.shards.tables import scores
from fineshards.shards.tables.decisions import Decisions, merged, read_decisions, to_bytes
from fineshards.shards.tables.marks import Records
from fineshards.shards.tables.statistics import Tally
from fineshards.shards.tables.verdicts import JudgedBlock, KeyFile, StageFiles, earlier_decisions
from fineshards.worker.comparing import Comparing
from fineshards.worker.documents import DocumentBatch, documents
from fineshards.worker.marking import Marking, joined_keys, key_type, positions_in, records_of
from fineshards.worker.work import Work

# Files whose marks are kept in memory: a worker goes from block to block of the same file.
_FILES_KEPT = 4


class Judging:
    """The stages of a job's recipe, in one process."""

    def __init__(self, work: Work) -> None:
        assert work.settings.recipe is not None
        self._work = work
        self._recipe = work.settings.recipe
        self._marked = lru_cache(_FILES_KEPT)(lambda stage, file: self._stage(stage).marked(file))
        # By stage: what they read of the job's record is kept.
        self.keyed_step = lru_cache(self._keyed_step)
        self._decisions = lru_cache(_FILES_KEPT)(partial(read_decisions, work.checkpoints.storage))

    @cached_property
    def curator(self) -> Curator:
        """The steps, checked against the job's record."""
        return Curator.of(self._recipe)

    @property
    def last(self) -> int:
        """The number of the last stage, which ends with the tokenizer."""
        return self.curator.stages - 1

    def _keyed_step(self, stage: int) -> Marking:
        """The keyed step that ends a stage; one that compares texts is a `Comparing`."""
        if self.curator.keyed(stage).compared:
            return Comparing(self._work, self.curator, stage, self._marked)
        return Marking(self._work, self.curator, stage)

    def judge_block(self, file: SourceFile, block: Block, number: int) -> tuple[JudgedBlock, bool]:
        """Judges the rows of a block in a stage that ends with a keyed step.

        Returns the judged block, and whether an earlier run had judged it.
        """
        stage = self._stage(number)
        judged = stage.read_block(block)
        if not (was_judged := judged is not None):
            self._work.checkpoints.stop_if_replaced(file.index)
            rejected = Rejected(file, self._work.max_bad_rows)
            for batch in self._documents_left(number, file, block):
                rejected.add(batch.read.bad)
        judged = judged or stage.judged(block)
        return JudgedBlock(file, block, KeyFile(stage.keys_file(block), judged.keys)), was_judged

    def _documents_left(
        self, number: int, file: SourceFile, block: Block
    ) -> Iterator[DocumentBatch]:
        """Yields the documents of a block that a stage leaves, of those that earlier ones left.

        Stores what the stage decides when they are read to their end.
        """
        curator, work, dropped, given = self.curator, self._work, list[pa.Table](), list[pa.Table]()
        earlier = earlier_decisions(work.checkpoints, block, number, self._marked)
        scores_before = self._scores([block], range(number))
        parts, tally, stop_row = list[Records](), Tally(), block.first_row
        steps = None if work.settings.spares(file) else curator
        numbering, upto = positions_in(file, work.settings), curator.first_step(number)
        for batch in documents(
            file, work.settings, block, curator=steps, decisions=earlier, upto=upto
        ):
            if batch.spared:
                judged = curator.spare(batch.batch, number)
            else:
                judged = curator.judge(batch.batch, number, earlier, tally, scores_before)
            dropped += judged.dropped
            given += judged.scores
            if judged.keys is not None:
                parts.append(records_of(judged.kept, judged.keys, numbering))
            stop_row = max(stop_row, int(batch.read.numbers.max(initial=-1)) + 1)
            now = Decisions(merged(judged.dropped))
            yield replace(batch, batch=judged.kept, decisions=(earlier, now))
        keys = None if number == self.last else joined_keys(curator.keyed(number), parts)
        of_stage = self._joined(given, [number])
        self._stage(number).write_block(block, dropped, keys, tally.table(), stop_row, of_stage)

    def to_tokenize(self, file: SourceFile, block: Block) -> Iterator[DocumentBatch]:
        """The documents of a block that all steps keep, as they are tokenized.

        Does the last stage, unless the decisions of all steps are in the storage.
        """
        if not self._work.decided:
            return self._documents_left(self.last, file, block)
        decisions = self._decisions(file.index)
        return documents(
            file, self._work.settings, block, curator=self.curator, decisions=decisions
        )

    def has_last_stage(self, block: Block) -> bool:
        """Whether the decisions of the last stage about a block are stored, undamaged."""
        return self._stage(self.last).read_block(block) is not None

    def statistics(self, file: int) -> list[pa.Table]:
        """What all stages counted of a source file, block by block."""
        blocks = self._work.checkpoints.read_blocks(file) or []
        stages = map(self._stage, range(self.curator.stages))
        return [stage.judged(block).counted() for stage in stages for block in blocks]

    def write_decisions(self, file: int) -> list[MetadataFile]:
        """Writes a source file's decisions and scores, if any, and its keys, if they are kept."""
        blocks = self._work.checkpoints.read_blocks(file) or []
        write = partial(write_metadata, self._work.checkpoints.storage)
        tables, written = [], []
        for number in range(self.curator.stages):
            stage = self._stage(number)
            tables += [stage.decided(block)[0] for block in blocks]
            if number < self.last:
                tables.append(stage.marked(file))
        table = merged(tables)
        if len(table):
            written.append(write(file_table("decisions", file), to_bytes(table)))
        given = self._scores(blocks, range(self.curator.stages))
        if given is not None and len(given):
            written.append(write(file_table("scores", file), scores.to_bytes(given)))
        if self._recipe.keep_keys:
            for number in range(self.last):
                if isinstance(self.curator.keyed(number), SeenIn):
                    continue
                name = keys_name(file, self.curator.number_of_keyed(number))
                written.append(write(name, self._keys_of_file(blocks, number)))
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
        storage, keyed = self._work.checkpoints.storage, self.curator.keyed(number)
        names = map(self._stage(number).keys_file, blocks)
        parts = [np.frombuffer(storage.read(name), key_type(keyed)) for name in names]
        return joined_keys(keyed, parts).tobytes()

    def _stage(self, number: int) -> StageFiles:
        return StageFiles(self._work.checkpoints, number)
