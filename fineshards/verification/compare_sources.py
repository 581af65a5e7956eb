"""Documents tokenized again from their sources, and compared with the shards."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from fineshards.encoders.encoder import Encoder
from fineshards.errors import FineshardsError
from fineshards.shards.counts import Counts, Dropped
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.records import ShardRecord, SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.tables.documents import DocumentPiece
from fineshards.shards.tables.hash_sample import sampled, splitmix64
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER
from fineshards.sources.finding import as_it_is
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows
from fineshards.verification.compare_decisions import DecisionReplay
from fineshards.wording import counted
from fineshards.worker.document_encoder import document_encoder


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
            judging = DecisionReplay(dataset, percent)
        except FineshardsError as error:
            found.problems.append(f"the recipe cannot be used again: {error}")
            return found
    for file, report in zip(dataset.manifest.files, dataset.manifest.reports, strict=True):
        sample = chosen[file.name]
        try:
            counts: list[Counts] = []
            file = as_it_is(file)
            for rows in _read(file, settings):
                documents = rows.with_text()
                counts.append(rows.counts())
                if judging is not None:
                    found.problems += judging.compare(file, documents, set(sample.pieces))
                    counts.append(judging.count_dropped(file, documents))
                    documents = documents.filter(judging.kept(file, documents), [])
                if settings.chat is not None:
                    is_listed = np.isin(documents.numbers, rejected.get(file.name, []))
                    found.problems += _encodable(file, documents.filter(is_listed, []), encoder)
                    documents = documents.filter(~is_listed, [])
                    counts.append(Counts(rejected=int(is_listed.sum())))
                found.problems += sample.compare(dataset, file, documents, encoder, judging)
                counts.append(
                    Counts(documents=len(documents.numbers), text_bytes=documents.text_bytes)
                )
            rewrites = judging is not None and judging.rewrites
            found.problems += _other_counts(file, report, Counts.total(counts), rewrites)
            found.problems += sample.never_found(file)
            found.problems += () if judging is None else judging.never_found(file)
        except FineshardsError as error:
            found.problems.append(str(error))
        found.documents += sample.compared
    if judging is not None:
        found.problems += judging.compare_witnesses()
        found.judged = judging.judged
    return found


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


def _other_counts(
    file: SourceFile, report: FileReport, found: Counts, rewrites: bool
) -> Iterator[str]:
    """What is counted otherwise. rewrites: whether texts are not those of the source."""
    for what in ("documents", "nulls", "rejected", "text_bytes"):
        now, recorded = getattr(found, what), getattr(report.counts, what)
        if now != recorded and not (what == "text_bytes" and rewrites):
            yield f"{file.path}: {what} is {now}; the manifest says {recorded}"
    if found.dropped_dumps != report.counts.dropped_dumps:
        yield f"{file.path}: dropped_dumps differ from those of the manifest"
    if found.unextracted != report.counts.unextracted:
        yield (f"{file.path}: {_pages(found)}; the manifest says {_pages(report.counts)}")
    for now, recorded in zip_longest(found.dropped, report.counts.dropped):
        if now != recorded:
            yield (
                f"{file.path}: dropped is {_described(now)}; the manifest says "
                f"{_described(recorded)}"
            )
            return


def _pages(counts: Counts) -> str:
    reasons = ", ".join(f"{each.rows:,} {each.reason}" for each in counts.unextracted)
    return f"pages without extracted text are {reasons or 'none'}"


def _described(dropped: Dropped | None) -> str:
    if dropped is None:
        return "nothing more"
    return (
        f"{counted(dropped.documents, 'document')} of {counted(dropped.text_bytes, 'byte')} by "
        f"step {dropped.step + 1} ({dropped.reason})"
    )


@dataclass(slots=True)
class _ChosenDocuments:
    """The chosen documents of one source file: the pieces of each, by row."""

    pieces: dict[int, list[tuple[ShardRecord, DocumentPiece]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    compared: int = 0

    def compare(
        self,
        dataset: Dataset,
        file: SourceFile,
        documents: Rows,
        encoder: Encoder,
        judging: DecisionReplay | None,
    ) -> Iterator[str]:
        """The differences of those documents that are chosen."""
        wanted = np.array([row in self.pieces for row in documents.numbers.tolist()], np.bool_)
        documents = documents.filter(wanted, [])
        if not len(documents.numbers):
            return
        if judging is not None:
            documents = replace(documents, texts=judging.texts(file, documents).texts)
        encoded = encoder.encode_at(documents.texts, file.index, documents.numbers)
        rule = dataset.manifest.settings.split
        sources = documents.sources(file.index, rule).to_pylist()
        for index, source in enumerate(sources):
            found = self.pieces.pop(source["row"])
            self.compared += 1
            yield from _differences(dataset, file, source, found, encoded.document(index))
            if (
                encoded.learned is not None
                and encoded.learned[index].as_py() != found[0][1].learned
            ):
                yield (
                    f"{found[0][0].name}, document {found[0][1].document}: its learned tokens "
                    f"differ from those of {file.path}, row {source['row']}"
                )

    def never_found(self, file: SourceFile) -> Iterator[str]:
        """Documents that are not in the source where their tables say."""
        for row, ((shard, piece), *_) in self.pieces.items():
            yield (
                f"{shard.name}, document {piece.document} is recorded as row {row} of {file.path}, "
                "which is not a document"
            )


def _differences(
    dataset: Dataset,
    file: SourceFile,
    source: dict[str, object],
    found: list[tuple[ShardRecord, DocumentPiece]],
    expected: npt.NDArray[np.uint32],
) -> Iterator[str]:
    """How a document in the shards differs from one in its source."""
    (shard, first), *_ = found
    where, row = f"{shard.name}, document {first.document}", first.row
    parts = [dataset.tokens(s, piece.offset, piece.offset + piece.length) for s, piece in found]
    if first.id != source["id"]:
        yield (
            f"{where} is recorded as row {row} of {file.path} with id {first.id}, but that row has "
            f"the id {source['id']}"
        )
    elif not np.array_equal(np.concatenate(parts), expected):
        yield f"{where}: its tokens differ from those of {file.path}, row {row}"
    else:
        for name in ("split_hash", "text_hash"):
            if getattr(first, name) != source.get(name, getattr(first, name)):
                yield (
                    f"{where}: its {name} is {getattr(first, name)}, but that of {file.path}, row "
                    f"{row} is {source[name]}"
                )


def _choose(dataset: Dataset, percent: float) -> dict[str, _ChosenDocuments]:
    """A sample of the documents, by source path; a hash of a document's number decides."""
    samples: dict[str, _ChosenDocuments] = defaultdict(_ChosenDocuments)
    in_all = dataset.manifest.totals()["documents"]
    # A small share of few documents may be none of them.
    always = int(splitmix64(np.array([in_all], np.uint64))[0]) % in_all
    for position, shard in enumerate(dataset.manifest.shards):
        table = dataset.table(position)
        chosen = sampled(table.document, percent / 100) | (table.document == always)
        for index in np.flatnonzero(chosen & (table.redacted == 0)).tolist():
            piece = table.piece(index)
            samples[piece.file].pieces[piece.row].append((shard, piece))
    return samples


def _read(file: SourceFile, settings: Settings) -> Iterator[Rows]:
    """The rows of a file."""
    for block in discover_blocks(file, settings.columns, settings.block_bytes):
        yield from read_block(file, settings.columns, block)
