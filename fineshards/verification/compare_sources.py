"""Documents and decisions made again from their sources, and compared; as part of verify."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator, rewrites
from fineshards.curation.step import Keyed, Keys
from fineshards.encoders.encoder import Encoder
from fineshards.errors import FineshardsError
from fineshards.shards.counts import Counts
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.curated_files import decisions_name
from fineshards.shards.job.records import ShardRecord, SourceFile
from fineshards.shards.tables.decisions import Decisions, read_decisions
from fineshards.shards.tables.documents import DocumentPiece
from fineshards.shards.tables.hash_sample import sampled, splitmix64
from fineshards.shards.tables.marks import row_of
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.shards.tables.scores import joined, read_scores, values_at
from fineshards.sources.finding import as_it_is
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows
from fineshards.verification.check_files import differences
from fineshards.worker.document_encoder import document_encoder
from fineshards.worker.indexes import index_of, index_records
from fineshards.worker.kept_rows import batch_of

_FILES_KEPT = 4
# The pieces of chosen documents of a source file, by row.
_Chosen = dict[int, list[tuple[ShardRecord, DocumentPiece]]]


@dataclass(slots=True)
class Compared:
    """What was compared with the sources.

    documents: that were tokenized again. judged: dropped or cut by the recipe, and judged again.
    problems: one sentence per difference.
    """

    documents: int = 0
    judged: int = 0
    problems: list[str] = field(default_factory=list)


def compare_with_sources(dataset: Dataset, percent: float) -> Compared:
    """Tokenizes about `percent` percent of the documents again, and at least one.

    With a recipe it judges them again too, and as many of those that were dropped or cut.

    Differences are: a source that has changed or cannot be read, a document whose tokens, row or
    hashes differ, another decision.
    """
    settings = dataset.manifest.settings
    encoder = document_encoder(settings, dataset.storage)
    chosen = _choose(dataset, percent)
    rejected = _rejected(dataset) if settings.chat else {}
    found, judging = Compared(), None
    if settings.recipe is not None:
        try:
            judging = _Judging(dataset, percent)
        except FineshardsError as error:
            found.problems.append(f"the recipe cannot be used again: {error}")
            return found
    for file, report in zip(dataset.manifest.files, dataset.manifest.reports, strict=True):
        pieces, counts = chosen[file.name], list[Counts]()
        wanted, listed = len(pieces), rejected.get(file.name, [])
        try:
            file = as_it_is(file)
            for rows in _read(dataset, file):
                documents = rows.with_text()
                counts.append(rows.counts())
                if judging is not None:
                    found.problems += judging.compare(file, documents, set(pieces))
                    documents, dropped = judging.kept(file, documents)
                    counts.append(dropped)
                if settings.chat is not None:
                    is_listed = np.isin(documents.numbers, listed)
                    found.problems += _encodable(file, documents.filter(is_listed, []), encoder)
                    documents = documents.filter(~is_listed, [])
                    counts.append(Counts(rejected=int(is_listed.sum())))
                found.problems += _compare(dataset, file, documents, encoder, judging, pieces)
                size, text_bytes = len(documents.numbers), documents.text_bytes
                counts.append(Counts(documents=size, text_bytes=text_bytes))
            # A text that was rewritten has other bytes than its source.
            without = judging is not None and judging.rewrites
            ours, theirs = _sums(Counts.total(counts), without), _sums(report.counts, without)
            found.problems += differences(ours, theirs, file.path)
            found.problems += (
                f"{shard.name}, document {piece.document} is recorded as row {row} of {file.path}, "
                "which is not a document"
                for row, ((shard, piece), *_) in pieces.items()
            )
            found.problems += () if judging is None else judging.never_found(file)
        except FineshardsError as error:
            found.problems.append(str(error))
        found.documents += wanted - len(pieces)
    if judging is not None:
        found.problems += judging.compare_witnesses()
        found.judged = judging.judged
    return found


def _choose(dataset: Dataset, percent: float) -> dict[str, _Chosen]:
    """A sample of the documents, by source path; a hash of a document's number decides."""
    chosen: dict[str, _Chosen] = defaultdict(lambda: defaultdict(list))
    in_all = dataset.manifest.totals["documents"]
    # A small share of few documents may be none of them.
    always = int(splitmix64(np.array([in_all], np.uint64))[0]) % in_all
    for position, shard in enumerate(dataset.manifest.shards):
        table = dataset.table(position)
        picked = sampled(table.document, percent / 100) | (table.document == always)
        for index in np.flatnonzero(picked & (table.redacted == 0)).tolist():
            piece = table.piece(index)
            chosen[piece.file][piece.row].append((shard, piece))
    return chosen


def _read(dataset: Dataset, file: SourceFile) -> Iterator[Rows]:
    """The rows of a file."""
    settings = dataset.manifest.settings
    for block in discover_blocks(file, settings.columns, settings.block_bytes):
        yield from read_block(file, settings.columns, block)


def _rejected(dataset: Dataset) -> dict[str, list[int]]:
    """The rows that the dataset lists as rejected, by the path of their file."""
    found: dict[str, list[int]] = defaultdict(list)
    for each in dataset.manifest.metadata:
        if each.name.startswith(REJECTED_FOLDER):
            for line in dataset.storage.read(each.name).splitlines():
                listed = json.loads(line)
                found[listed["file"]].append(listed["row"])
    return found


def _encodable(file: SourceFile, rejected: Rows, encoder: Encoder) -> Iterator[str]:
    """Rows that are listed as rejected, and can be encoded."""
    refused = {index for index, _ in encoder.encode(rejected.texts).refused}
    for index, row in enumerate(rejected.numbers.tolist()):
        if index not in refused:
            yield f"{file.path}, row {row} is listed as rejected, but it can be encoded"


def _sums(counts: Counts, without_bytes: bool) -> dict[str, int]:
    """What is known of a file without its tokens, by what it is. without_bytes: of the texts."""
    names = {"documents": "documents", "nulls": "rows without text", "rejected": "rejected rows"}
    found = {what: getattr(counts, name) for name, what in names.items()}
    found |= {} if without_bytes else {"bytes of text": counts.text_bytes}
    for each in counts.dropped:
        by = f"dropped by step {each.step + 1} ({each.reason})"
        found |= {f"documents {by}": each.documents, f"bytes {by}": each.text_bytes}
    for of in counts.dropped_dumps:
        found[f"documents of {of.dump} dropped by step {of.step + 1}"] = of.documents
    for page in counts.unextracted:
        found[f"pages without extracted text ({page.reason})"] = page.rows
    return found


def _compare(
    dataset: Dataset,
    file: SourceFile,
    documents: Rows,
    encoder: Encoder,
    judging: _Judging | None,
    chosen: _Chosen,
) -> Iterator[str]:
    """How chosen documents in the shards differ from those in their source; takes them out."""
    wanted = np.array([row in chosen for row in documents.numbers.tolist()], np.bool_)
    documents = documents.filter(wanted, [])
    if not len(documents.numbers):
        return
    if judging is not None:
        documents = replace(documents, texts=judging.texts(file, documents).texts)
    encoded = encoder.encode_at(documents.texts, file.index, documents.numbers)
    rule = dataset.manifest.settings.split
    for index, source in enumerate(documents.sources(file.index, rule).to_pylist()):
        pieces = chosen.pop(source["row"])
        shard, first = pieces[0]
        where, of = f"{shard.name}, document {first.document}", f"{file.path}, row {first.row}"
        tokens = [dataset.tokens(s, each.offset, each.offset + each.length) for s, each in pieces]
        if first.id != source["id"]:
            yield f"{where} is recorded as {of} with id {first.id}, but its id is {source['id']}"
            continue
        if not np.array_equal(np.concatenate(tokens), encoded.document(index)):
            yield f"{where}: its tokens differ from those of {of}"
            continue
        for name in ("split_hash", "text_hash"):
            was, now = getattr(first, name), source.get(name, getattr(first, name))
            if was != now:
                yield f"{where}: its {name} is {was}, but that of {of} is {now}"
        if encoded.learned is not None and encoded.learned[index].as_py() != first.learned:
            yield f"{where}: its learned tokens differ from those of {of}"


class _Mark(NamedTuple):
    """A decision of a keyed step: about a document or a span of it, with its witness."""

    file: int
    row: int
    step: int
    span: int | None
    witness_file: int
    witness_row: int
    similarity: float | None


class _Judging:
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
        self._decisions = lru_cache(_FILES_KEPT)(lambda file: read_decisions(dataset.storage, file))
        # The documents whose keys are compared, by file and step; and the keys, when they are read,
        # with the contents: None for a document that does not reach the step.
        self._wanted: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._marks: list[_Mark] = []
        self._keys: dict[tuple[int, int, int], tuple[Keys, Any] | None] = {}
        self.judged = 0
        self.rewrites = any(map(rewrites, self._curator.steps))
        names = {file.name for file in dataset.manifest.metadata}
        decided = [file.index for file in self._files if decisions_name(file.index) in names]
        self._rows = {file: self._sample(file, percent) for file in decided}
        if decided and not any(self._rows.values()):
            rows = np.unique(self._decisions(decided[0]).table["row"].to_numpy())
            self._rows[decided[0]].add(int(rows[np.argmin(splitmix64(rows.astype(np.uint64)))]))
        for file in decided:
            self._choose_marks(file)

    def _sample(self, file: int, percent: float) -> set[int]:
        rows = np.unique(self._decisions(file).table["row"].to_numpy())
        return set(rows[sampled(rows, percent / 100, salt=file)].tolist())

    def _choose_marks(self, file: int) -> None:
        table = self._decisions(file).table
        there = np.isin(table["row"].to_numpy(), sorted(self._rows[file]))
        there &= table["witness_file"].is_valid().to_numpy()
        for each in table.filter(there).to_pylist():
            mark = _Mark(file, *(each[name] for name in _Mark._fields[1:]))
            self._marks.append(mark)
            self._wanted[file][mark.step].add(mark.row)
            if mark.witness_file >= 0:
                self._wanted[mark.witness_file][mark.step].add(mark.witness_row)

    def kept(self, file: SourceFile, documents: Rows) -> tuple[Rows, Counts]:
        """The documents of a file that the recipe kept, and the counts of those that it dropped."""
        decisions, dumps = self._decisions(file.index), documents.labels.get("dump")
        dropped = decisions.count_dropped(documents.numbers, documents.texts, dumps)
        return documents.filter(~decisions.are_dropped(documents.numbers), []), dropped

    def texts(self, file: SourceFile, documents: Rows) -> Batch:
        """Documents that the recipe kept, with the texts that were tokenized."""
        return self._curator.texts(batch_of(documents, file), self._decisions(file.index))

    def compare(self, file: SourceFile, documents: Rows, more: set[int]) -> Iterator[str]:
        """What is decided otherwise about those documents that are chosen.

        documents: of a file, in order; each is given once. more: rows that are chosen too.
        """
        batch, decisions = batch_of(documents, file), self._decisions(file.index)
        picked = _among(batch, self._rows.get(file.index, set()) | more)
        if picked.any():
            yield from self._differences(file, batch.keep(picked), decisions)
        for step, rows in self._wanted[file.index].items():
            if (there := _among(batch, rows)).any():
                self._read_keys(file.index, step, batch.keep(there), decisions)

    def _differences(self, file: SourceFile, batch: Batch, decisions: Decisions) -> Iterator[str]:
        again, scores = self._curator.judge_again(batch, decisions)
        yield from self._other_scores(file, batch, scores)
        sample = self._rows.get(file.index, set())
        for row in batch.rows.tolist():
            whole = (each for each in decisions.of_row(row) if each["span"] is None)
            was = next(((each["step"], each["reason"]) for each in whole), None)
            if was != (now := again.get(row)):
                yield (
                    f"{file.path}, row {row} was {self._verdict(was)}; judged again, it is "
                    f"{self._verdict(now)}"
                )
            self.judged += row in sample
            sample.discard(row)

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
        self._keys |= {(file, row, step): None for row in batch.rows[gone].tolist()}
        keyed = self._curator.steps[step]
        assert isinstance(keyed, Keyed)
        batch = self._curator.texts(batch.keep(~gone), decisions, step)
        found = keyed.keys(batch)
        contents = keyed.contents(batch) if keyed.compared else [None] * len(batch)
        for index, (row, content) in enumerate(zip(batch.rows.tolist(), contents, strict=True)):
            own = found.owners == index
            spans = None if found.spans is None else found.spans[own]
            keys = Keys(found.keys[own], found.owners[own], spans)
            self._keys[file, row, step] = keys, content

    def never_found(self, file: SourceFile) -> Iterator[str]:
        """Rows with decisions that are not documents; to be called after all of a file was read."""
        for row in sorted(self._rows.get(file.index, ())):
            yield f"{file.path}, row {row} has a decision, but is not a document"

    def compare_witnesses(self) -> Iterator[str]:
        """What is wrong with the witnesses; to be called after all files were read."""
        unread = set()
        for place in sorted({(m.step, m.witness_file) for m in self._marks if m.witness_file < 0}):
            try:
                self._read_index(*place)
            except FineshardsError as error:
                unread.add(place)
                yield str(error)
        for mark in self._marks:
            if (mark.step, mark.witness_file) in unread or not (problem := self._problem(mark)):
                continue
            of = f"index {-1 - mark.witness_file}"
            if mark.witness_file >= 0:
                of = self._files[mark.witness_file].path
            elif index := index_of(self._recipe, mark.step, -1 - mark.witness_file):
                of = index.path
            span = "" if mark.span is None else f", span {mark.span}"
            yield (
                f"{self._files[mark.file].path}, row {mark.row}{span}: its witness of step "
                f"{self._recipe.step_name(mark.step)}, row {mark.witness_row} of {of}, {problem}"
            )

    def _read_index(self, step: int, number: int) -> None:
        """Reads the keys of those entries of an index that are witnesses."""
        index, keyed = index_of(self._recipe, step, -1 - number), self._curator.steps[step]
        assert isinstance(keyed, Keyed)
        if index is None:
            return
        records = index_records(keyed, index, self._settings.columns, self._settings.block_bytes)
        rows = row_of(records["position"])
        for mark in self._marks:
            keys = records["key"][rows == mark.witness_row]
            if (mark.step, mark.witness_file) == (step, number) and len(keys):
                found = Keys(keys, np.zeros(len(keys), np.int64))
                self._keys[number, mark.witness_row, step] = found, None

    def _problem(self, mark: _Mark) -> str | None:
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
        assert isinstance(step, Keyed)
        if getattr(step, "rule", "earlier") == "components":
            witness = np.array([mark.witness_row])
            dropped = self._decisions(mark.witness_file).dropped_by(mark.step, witness)
            return "was dropped by this step itself" if dropped[0] else None
        keys, of_witness = own[0].keys, others[0].keys
        if mark.span is not None and own[0].spans is not None and others[0].spans is not None:
            keys = keys[own[0].spans == mark.span]
            # A span that a document repeats has an earlier one of its own document as witness.
            if (mark.witness_file, mark.witness_row) == (mark.file, mark.row):
                of_witness = of_witness[others[0].spans < mark.span]
        if not {key.tobytes() for key in keys} & {key.tobytes() for key in of_witness}:
            return "has none of its keys"
        if not step.compared:
            return None
        similarity = step.similarity(own[1], others[1])
        if similarity < step.threshold:
            return f"is only {similarity:.4g} alike"
        if mark.similarity is None or np.float32(similarity) != np.float32(mark.similarity):
            return f"is {similarity:.4g} alike, and {mark.similarity} is recorded"
        return None


def _among(batch: Batch, rows: set[int]) -> npt.NDArray[np.bool_]:
    """Which documents of a batch are in some rows."""
    return np.array([row in rows for row in batch.rows.tolist()], np.bool_)
