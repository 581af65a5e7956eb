"""Decisions of a recipe, made again from the sources and compared, as part of verify."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator, rewrites
from fineshards.curation.step import Keyed, Keys
from fineshards.errors import FineshardsError
from fineshards.shards.counts import Counts
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.curated_files import decisions_name
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.decisions import Decisions, read_decisions
from fineshards.shards.tables.hash_sample import sampled, splitmix64
from fineshards.shards.tables.marks import row_of
from fineshards.shards.tables.scores import joined, read_scores, values_at
from fineshards.sources.rows import Rows
from fineshards.worker.indexes import index_of, index_records
from fineshards.worker.kept_rows import batch_of

_FILES_KEPT = 4
_OF_MARK = ("row", "step", "span", "witness_file", "witness_row", "similarity")


@dataclass(frozen=True, slots=True)
class _WitnessedDecision:
    """A decision of a keyed step: about a document or a span of it, with its witness."""

    file: int
    row: int
    step: int
    span: int | None
    witness_file: int
    witness_row: int
    similarity: float | None


class DecisionReplay:
    """Judges a sample of the documents that were dropped or cut, and of those that were kept.

    Of a decision of a keyed step it checks that the witness reached the step, has one of the keys,
    made of the texts as the step found them, and is as alike as is recorded. With the rule
    `components` the two may be linked through others only; there it checks that the witness was
    kept by the step.
    """

    def __init__(self, dataset: Dataset, percent: float) -> None:
        """percent: the share of the documents with decisions to take, and at least one.

        Raises FineshardsError if the steps are not what they were.
        """
        recipe = dataset.manifest.settings.recipe
        assert recipe is not None
        self._files = dataset.manifest.files
        self._recipe = recipe
        self._settings = dataset.manifest.settings
        self._curator = Curator.of(recipe)
        self._scores = lru_cache(_FILES_KEPT)(lambda file: read_scores(dataset.storage, file))
        self.decisions = lru_cache(_FILES_KEPT)(lambda file: read_decisions(dataset.storage, file))
        self._rows: dict[int, set[int]] = defaultdict(set)
        # The documents whose keys are compared, by file and step; and the keys, when they are read:
        # None for a document that does not reach the step.
        self._wanted: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._marks: list[_WitnessedDecision] = []
        self._keys: dict[tuple[int, int, int], Keys | None] = {}
        self._contents: dict[tuple[int, int, int], npt.NDArray[np.uint64]] = {}
        self._choose(dataset, percent)
        self.judged = 0

    @property
    def rewrites(self) -> bool:
        """Whether a kept document may have another text than its source."""
        return any(map(rewrites, self._curator.steps))

    def _choose(self, dataset: Dataset, percent: float) -> None:
        names = {file.name for file in dataset.manifest.metadata}
        files = [file.index for file in self._files if decisions_name(file.index) in names]
        for file in files:
            rows = np.unique(self.decisions(file).table["row"].to_numpy())
            self._rows[file] |= set(rows[sampled(rows, percent / 100, salt=file)].tolist())
        if files and not any(self._rows.values()):
            rows = np.unique(self.decisions(files[0]).table["row"].to_numpy())
            hashes = splitmix64(rows.astype(np.uint64))
            self._rows[files[0]] |= {int(rows[np.argmin(hashes)])}
        for file, of_file in list(self._rows.items()):
            self._choose_marks(file, np.array(sorted(of_file), np.int64))

    def _choose_marks(self, file: int, rows: npt.NDArray[np.int64]) -> None:
        table = self.decisions(file).table
        there = np.isin(table["row"].to_numpy(), rows) & table["witness_file"].is_valid().to_numpy()
        for each in table.filter(there).to_pylist():
            mark = _WitnessedDecision(file, *(each[name] for name in _OF_MARK))
            self._marks.append(mark)
            self._wanted[file][mark.step].add(mark.row)
            if mark.witness_file >= 0:
                self._wanted[mark.witness_file][mark.step].add(mark.witness_row)

    def kept(self, file: SourceFile, documents: Rows) -> npt.NDArray[np.bool_]:
        """Which of some documents of a file, shape (n,), the recipe kept."""
        return ~self.decisions(file.index).are_dropped(documents.numbers)

    def count_dropped(self, file: SourceFile, documents: Rows) -> Counts:
        """The counts of those documents of a file that the recipe dropped."""
        numbers, dumps = documents.numbers, documents.labels.get("dump")
        return self.decisions(file.index).count_dropped(numbers, documents.texts, dumps)

    def texts(self, file: SourceFile, documents: Rows) -> Batch:
        """Documents that the recipe kept, with the texts that were tokenized."""
        return self._curator.texts(batch_of(documents, file), self.decisions(file.index))

    def compare(self, file: SourceFile, documents: Rows, more: set[int]) -> Iterator[str]:
        """What is decided otherwise about those documents that are chosen.

        documents: of a file, in order; each is given once. more: rows that are chosen too.
        """
        batch, decisions = batch_of(documents, file), self.decisions(file.index)
        chosen = self._rows[file.index] | more
        picked = np.array([row in chosen for row in batch.rows.tolist()], np.bool_)
        if picked.any():
            yield from self._differences(file, batch.keep(picked), decisions)
        for step, rows in self._wanted[file.index].items():
            there = np.array([row in rows for row in batch.rows.tolist()], np.bool_)
            if there.any():
                self._read_keys(file.index, step, batch.keep(there), decisions)

    def _differences(self, file: SourceFile, batch: Batch, decisions: Decisions) -> Iterator[str]:
        again, scores = self._curator.judge_again(batch, decisions)
        yield from self._other_scores(file, batch, scores)
        for row in batch.rows.tolist():
            recorded = [
                (each["step"], each["reason"])
                for each in decisions.of_row(row)
                if each["span"] is None
            ]
            was, now = (recorded[0] if recorded else None), again.get(row)
            if was != now:
                yield (
                    f"{file.path}, row {row} was {self._verdict(was)}; judged again, it is "
                    f"{self._verdict(now)}"
                )
            self.judged += row in self._rows[file.index]
            self._rows[file.index].discard(row)

    def _other_scores(self, file: SourceFile, batch: Batch, again: list[pa.Table]) -> Iterator[str]:
        """The first document with another score, for each score. again: those of now."""
        schema = self._curator.score_schema(range(self._curator.stages))
        if schema is None:
            return
        stored = values_at(self._scores(file.index) or schema.empty_table(), batch.rows)
        for name, now in values_at(joined(again, schema), batch.rows).items():
            pairs = zip(batch.rows.tolist(), stored[name].to_pylist(), now.to_pylist(), strict=True)
            for row, was, score in [each for each in pairs if each[1] != each[2]][:1]:
                yield f"{file.path}, row {row} has the {name} {was!r}; scored again, {score!r}"

    def _verdict(self, decided: tuple[int, str] | None) -> str:
        if decided is None:
            return "kept"
        return f"dropped by step {self._recipe.step_name(decided[0])} ({decided[1]})"

    def _read_keys(self, file: int, step: int, batch: Batch, decisions: Decisions) -> None:
        gone = np.zeros(len(batch), np.bool_)
        for earlier in range(step):
            gone |= decisions.dropped_by(earlier, batch.rows)
        for row in batch.rows[gone].tolist():
            self._keys[file, row, step] = None
        batch = batch.keep(~gone)
        keyed = self._curator.steps[step]
        assert isinstance(keyed, Keyed)
        batch = self._curator.texts(batch, decisions, step)
        found = keyed.keys(batch)
        if keyed.compared:
            for row, content in zip(batch.rows.tolist(), keyed.contents(batch), strict=True):
                self._contents[file, row, step] = content
        for index, row in enumerate(batch.rows.tolist()):
            own = found.owners == index
            spans = None if found.spans is None else found.spans[own]
            self._keys[file, row, step] = Keys(found.keys[own], found.owners[own], spans)

    def never_found(self, file: SourceFile) -> Iterator[str]:
        """Rows with decisions that are not documents; to be called after all of a file was read."""
        for row in sorted(self._rows[file.index]):
            yield f"{file.path}, row {row} has a decision, but is not a document"

    def compare_witnesses(self) -> Iterator[str]:
        """What is wrong with the witnesses; to be called after all files were read."""
        indexes = {(mark.step, mark.witness_file) for mark in self._marks if mark.witness_file < 0}
        unread = set()
        for step, number in sorted(indexes):
            try:
                self._read_index(step, number)
            except FineshardsError as error:
                unread.add((step, number))
                yield str(error)
        for mark in self._marks:
            if (mark.step, mark.witness_file) in unread:
                continue
            problem = self._problem(mark)
            if problem:
                span = "" if mark.span is None else f", span {mark.span}"
                yield (
                    f"{self._files[mark.file].path}, row {mark.row}{span}: its witness of step "
                    f"{self._recipe.step_name(mark.step)}, row {mark.witness_row} of "
                    f"{self._path(mark)}, {problem}"
                )

    def _path(self, mark: _WitnessedDecision) -> str:
        if mark.witness_file >= 0:
            return self._files[mark.witness_file].path
        index = index_of(self._recipe, mark.step, -1 - mark.witness_file)
        return f"index {-1 - mark.witness_file}" if index is None else index.path

    def _read_index(self, step: int, number: int) -> None:
        """Reads the keys of those entries of an index that are witnesses."""
        index, keyed = index_of(self._recipe, step, -1 - number), self._curator.steps[step]
        assert isinstance(keyed, Keyed)
        if index is None:
            return
        records = index_records(keyed, index, self._settings.columns, self._settings.block_bytes)
        rows = row_of(records["position"])
        for mark in self._marks:
            if (mark.step, mark.witness_file) == (step, number):
                keys = records["key"][rows == mark.witness_row]
                if len(keys):
                    found = Keys(keys, np.zeros(len(keys), np.int64))
                    self._keys[number, mark.witness_row, step] = found

    def _problem(self, mark: _WitnessedDecision) -> str | None:
        own = self._keys.get((mark.file, mark.row, mark.step))
        place = mark.witness_file, mark.witness_row, mark.step
        if own is None:
            return None  # reported as another difference
        if place not in self._keys:
            return "is not a document"
        others = self._keys[place]
        if others is None:
            return "was dropped by an earlier step"
        step = self._curator.steps[mark.step]
        if getattr(step, "rule", "earlier") == "components":
            dropped = self.decisions(mark.witness_file).dropped_by(
                mark.step, np.array([mark.witness_row])
            )
            return "was dropped by this step itself" if dropped[0] else None
        keys = own.keys
        if mark.span is not None and own.spans is not None and others.spans is not None:
            keys = keys[own.spans == mark.span]
            # A span that a document repeats has an earlier one of its own document as witness.
            same = (mark.witness_file, mark.witness_row) == (mark.file, mark.row)
            earlier = others.spans < mark.span if same else np.ones(len(others.keys), np.bool_)
            others = Keys(others.keys[earlier], others.owners[earlier])
        if not _as_set(keys) & _as_set(others.keys):
            return "has none of its keys"
        assert isinstance(step, Keyed)
        return self._unlike(step, mark) if step.compared else None

    def _unlike(self, step: Keyed, mark: _WitnessedDecision) -> str | None:
        """What is wrong with the similarity to a witness, if anything is."""
        one = self._contents[mark.file, mark.row, mark.step]
        other = self._contents[mark.witness_file, mark.witness_row, mark.step]
        similarity = step.similarity(one, other)
        if similarity < step.threshold:
            return f"is only {similarity:.4g} alike"
        if mark.similarity is None or np.float32(similarity) != np.float32(mark.similarity):
            return f"is {similarity:.4g} alike, and {mark.similarity} is recorded"
        return None


def _as_set(keys: npt.NDArray[np.uint64]) -> set[bytes]:
    return {key.tobytes() for key in keys}
