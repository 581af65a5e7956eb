"""Documents and decisions made again from their sources, and compared; as part of verify."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator, rewrites
from fineshards.curation.step import Keyed
from fineshards.encoders.encoder import Encoder
from fineshards.errors import FineshardsError
from fineshards.shards.counts import Counts
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import ShardRecord, SourceFile
from fineshards.shards.layout import file_table
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.documents import DocumentPiece
from fineshards.shards.tables.hash_sample import sampled, splitmix64
from fineshards.shards.tables.scores import joined, read_scores, values_at
from fineshards.sources.files import as_it_is
from fineshards.sources.rows import Rows
from fineshards.storage.base import Storage
from fineshards.verification.check_files import differences
from fineshards.worker.documents import DocumentBatch, document_encoder, documents

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


def compare_with_sources(storage: Storage, manifest: Manifest, percent: float) -> Compared:
    """Tokenizes about `percent` percent of the documents again, and at least one.

    With a recipe it judges them again too, and as many of those that were dropped or cut.

    Differences are: a source that has changed or cannot be read, a document whose tokens, row or
    hashes differ, another decision.
    """
    dataset, settings = Dataset(storage, manifest), manifest.settings
    encoder = document_encoder(settings, dataset.storage)
    chosen = _choose(dataset, percent)
    compared, judging = Compared(), None
    if settings.recipe is not None:
        try:
            judging = _Judging(dataset, percent)
        except FineshardsError as error:
            compared.problems.append(f"the recipe cannot be used again: {error}")
            return compared
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        pieces, counts = chosen[file.name], list[Counts]()
        wanted = len(pieces)
        try:
            file = as_it_is(file)
            for batch in documents(file, settings):
                if judging is not None:
                    compared.problems += judging.compare(file, batch, set(pieces))
                    batch = batch.left_by(judging.decisions(file.index))
                rows, picked = batch.rows, batch.among(pieces)
                sums = Counts(documents=len(rows.numbers), text_bytes=rows.text_bytes)
                counts += [*batch.counts(), sums]
                if judging is not None:
                    picked = picked.found_by(judging.curator, judging.decisions(file.index))
                compared.problems += _compare(dataset, file, picked.rows, encoder, pieces)
            # Texts may be rewritten, and not all in the sums of the source could be encoded.
            rewrites = judging is not None and judging.rewrites
            without = rewrites or settings.chat is not None or report.counts.rejected > 0
            ours, theirs = _sums(Counts.total(counts), without), _sums(report.counts, without)
            compared.problems += differences(ours, theirs, file.path)
            left = {*pieces, *(judging.left(file) if judging else ())}
            compared.problems += (
                f"{file.path}, row {row} is not a document, and the dataset has one of it, or a "
                "decision"
                for row in sorted(left)
            )
        except FineshardsError as error:
            compared.problems.append(str(error))
        compared.documents += wanted - len(pieces)
    if judging is not None:
        compared.problems += judging.compare_witnesses()
        compared.judged = judging.judged
    return compared


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


def _sums(counts: Counts, without_bytes: bool) -> dict[str, int]:
    """What is known of a file without its tokens, by what it is. without_bytes: of the texts."""
    sums = {"rows without text": counts.nulls}
    sums["documents and rejected rows"] = counts.documents + counts.rejected
    sums |= {} if without_bytes else {"bytes of text": counts.text_bytes}
    for dropped in counts.dropped:
        by = f"dropped by step {dropped.step + 1} ({dropped.reason})"
        sums |= {f"documents {by}": dropped.documents, f"bytes {by}": dropped.text_bytes}
    for of_dump in counts.dropped_dumps:
        by = f"of {of_dump.dump} dropped by step {of_dump.step + 1}"
        sums[f"documents {by}"] = of_dump.documents
    for page in counts.unextracted:
        sums[f"pages without extracted text ({page.reason})"] = page.rows
    return sums


def _compare(
    dataset: Dataset,
    file: SourceFile,
    rows: Rows,
    encoder: Encoder,
    chosen: _Chosen,
) -> Iterator[str]:
    """How chosen documents in the shards differ from those in their source; takes them out."""
    if not len(rows.numbers):
        return
    encoded = encoder.encode_at(rows.texts, file.index, rows.numbers)
    rule = dataset.manifest.settings.split
    for index, source in enumerate(rows.sources(file, rule).to_pylist()):
        pieces = chosen.pop(source["row"])
        shard, first = pieces[0]
        where, of = f"{shard.name}, document {first.document}", f"{file.path}, row {first.row}"
        tokens = [dataset.tokens(at, of.offset, of.offset + of.length) for at, of in pieces]
        learned = None if encoded.learned is None else encoded.learned[index].as_py()
        pairs = {
            f"id {first.id} differs from that": (first.id, source["id"]),
            "tokens differ from those": (
                np.concatenate(tokens).tobytes(),
                encoded.document(index).tobytes(),
            ),
            "learned tokens differ from those": (first.learned, learned),
            "split_hash differs from that": (first.split_hash, source.get("split_hash")),
            "text_hash differs from that": (first.text_hash, source.get("text_hash")),
        }
        for what in [what for what, (was, now) in pairs.items() if was != now][:1]:
            yield f"{where}: its {what} of {of}"


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
        self._settings, self._files = dataset.manifest.settings, dataset.manifest.files
        assert self._settings.recipe is not None
        self._recipe = self._settings.recipe
        self.curator = Curator.of(self._recipe)
        self._scores = lru_cache(_FILES_KEPT)(lambda file: read_scores(dataset.storage, file))
        self.decisions = lru_cache(_FILES_KEPT)(lambda file: read_decisions(dataset.storage, file))
        # The documents whose keys are compared, by file and step; and the keys, as pairs with their
        # spans, when they are read, with the contents: None for a document that does not reach the
        # step.
        self._wanted: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._marks: list[dict[str, Any]] = []
        # Of a document at a step: the keys of each span, the first span of each key, its content.
        self._keys: dict[
            tuple[int, int, int], tuple[dict[int, list[bytes]], dict[bytes, int], Any] | None
        ] = {}
        self.judged = 0
        self.rewrites = any(map(rewrites, self.curator.steps))
        self._rows: dict[int, set[int]] = {}
        names = {file.name for file in dataset.manifest.metadata}
        for file in (of.index for of in self._files if file_table("decisions", of.index) in names):
            rows = np.unique(self.decisions(file).table["row"].to_numpy())
            chosen = sampled(rows, percent / 100, salt=file)
            if not any(self._rows.values()) and len(rows):
                chosen[np.argmin(splitmix64(rows.astype(np.uint64)))] = True
            self._rows[file] = set(rows[chosen].tolist())
            self._choose_marks(file)

    def _choose_marks(self, file: int) -> None:
        table = self.decisions(file).table
        there = np.isin(table["row"].to_numpy(), sorted(self._rows[file]))
        # Those in an index of other documents (`seen_in`) are not read again.
        there &= pc.fill_null(pc.greater_equal(table["witness_file"], 0), False).to_numpy()
        for mark in table.filter(there).to_pylist():
            self._marks.append(mark | {"file": file})
            self._wanted[file][mark["step"]].add(mark["row"])
            self._wanted[mark["witness_file"]][mark["step"]].add(mark["witness_row"])

    def left(self, file: SourceFile) -> set[int]:
        """Chosen rows that were not judged; to be called after all of a file was read."""
        return self._rows.get(file.index, set())

    def compare(self, file: SourceFile, documents: DocumentBatch, more: set[int]) -> Iterator[str]:
        """Differences in the decisions about the sampled documents.

        documents: as in the source, in order; each is given once. more: rows that are chosen too.
        """
        if not documents.spared:
            yield from self._differences(file, documents.among(self.left(file) | more).batch)
        for step, rows in self._wanted[file.index].items():
            self._read_keys(file.index, step, documents.among(rows))

    def _differences(self, file: SourceFile, batch: Batch) -> Iterator[str]:
        if not len(batch):
            return
        decisions = self.decisions(file.index)
        again, scores = self.curator.judge_again(batch, decisions)
        yield from self._other_scores(file, batch, scores)
        sample = self.left(file)
        for row in batch.rows.tolist():
            whole = (of for of in decisions.of_row(row) if of["span"] is None)
            was = next(((of["step"], of["reason"]) for of in whole), None)
            if was != (now := again.get(row)):
                yield (
                    f"{file.path}, row {row} was {self._verdict(was)}; judged again, it is "
                    f"{self._verdict(now)}"
                )
            self.judged += row in sample
            sample.discard(row)

    def _other_scores(self, file: SourceFile, batch: Batch, again: list[pa.Table]) -> Iterator[str]:
        """The first document with another score, for each score. again: those of now."""
        schema = self.curator.score_schema(range(self.curator.stages))
        if schema is None:
            return
        stored = values_at(self._scores(file.index) or schema.empty_table(), batch.rows)
        for name, now in values_at(joined(again, schema), batch.rows).items():
            pairs = zip(batch.rows.tolist(), stored[name].to_pylist(), now.to_pylist(), strict=True)
            for row, was, score in [pair for pair in pairs if pair[1] != pair[2]][:1]:
                yield f"{file.path}, row {row} has the {name} {was!r}; scored again, {score!r}"

    def _verdict(self, decided: tuple[int, str] | None) -> str:
        if decided is None:
            return "kept"
        return f"dropped by step {self._recipe.step_name(decided[0])} ({decided[1]})"

    def _read_keys(self, file: int, step: int, documents: DocumentBatch) -> None:
        if not len(documents.batch):
            return
        self._keys |= {(file, row, step): None for row in documents.batch.rows.tolist()}
        keyed = self.curator.steps[step]
        assert isinstance(keyed, Keyed)
        batch = documents.found_by(self.curator, self.decisions(file), step).batch
        read = keyed.keys(batch)
        contents = keyed.contents(batch) if keyed.compared else [None] * len(batch)
        spans = np.zeros(len(read.keys), np.int64) if read.spans is None else read.spans
        order = np.argsort(read.owners, kind="stable")
        bounds = np.searchsorted(read.owners[order], np.arange(len(batch) + 1)).tolist()
        for index, (row, content) in enumerate(zip(batch.rows.tolist(), contents, strict=True)):
            keys: dict[int, list[bytes]] = {}
            first: dict[bytes, int] = {}
            for at in order[bounds[index] : bounds[index + 1]].tolist():
                span, key = int(spans[at]), read.keys[at].tobytes()
                keys.setdefault(span, []).append(key)
                first[key] = min(first.get(key, span), span)
            self._keys[file, row, step] = keys, first, content

    def compare_witnesses(self) -> Iterator[str]:
        """What is wrong with the witnesses; to be called after all files were read."""
        for mark in self._marks:
            if problem := self._problem(mark):
                span = "" if mark["span"] is None else f", span {mark['span']}"
                yield (
                    f"{self._files[mark['file']].path}, row {mark['row']}{span}: its witness of "
                    f"step {self._recipe.step_name(mark['step'])}, row {mark['witness_row']} of "
                    f"{self._files[mark['witness_file']].path}, {problem}"
                )

    def _problem(self, mark: dict[str, Any]) -> str | None:
        number, span, at = mark["step"], mark["span"], (mark["file"], mark["row"])
        place = mark["witness_file"], mark["witness_row"]
        if place > at or (place == at and span is None):
            return "is not earlier"
        own = self._keys.get((*at, number))
        if own is None:
            return None  # reported as another difference
        if (*place, number) not in self._keys:
            return "is not a document"
        earlier = self._keys[*place, number]
        if earlier is None:
            return "was dropped by an earlier step"
        step = self.curator.steps[number]
        assert isinstance(step, Keyed)
        if getattr(step, "rule", "earlier") == "components":
            (dropping,) = self.decisions(place[0]).dropping(np.array([place[1]]))
            return "was dropped by this step itself" if dropping == number else None
        spans, keys, text = own
        _, first, earlier_text = earlier
        # A span that a document repeats has an earlier one of its own document as witness.
        if not any(
            key in first and (place != at or first[key] < span)
            for key in (keys if span is None else spans.get(span, ()))
        ):
            return "has none of its keys"
        if not step.compared:
            return None
        similarity, was = step.similarity(text, earlier_text), mark["similarity"]
        if similarity < step.threshold or was is None or np.float32(similarity) != np.float32(was):
            return f"is {similarity:.4g} alike, and {was} is recorded"
        return None
