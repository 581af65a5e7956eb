"""What the recipe of a dataset dropped or cut: decisions, with the texts that they are about."""

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator
from fineshards.curation.step import Judge, KeyedSpans
from fineshards.curation.steps.decontaminate import Decontaminate
from fineshards.errors import FineshardsError, OutputError, UsageError, did_you_mean
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import RecipeRecord, Settings, StepRecord
from fineshards.shards.layout import file_table
from fineshards.shards.record import replace
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.hash_sample import splitmix64
from fineshards.shards.tables.scores import read_scores, values_at
from fineshards.sources.files import as_it_is
from fineshards.storage.open import open_storage
from fineshards.wording import counted, shortened
from fineshards.worker.documents import DocumentBatch, documents

# Characters of a text that are shown, and of those before what decided; cuts that are shown.
_SHOWN, _BEFORE, _CUTS = 600, 60, 5
# Files of decisions that are read to choose from: reading all of a large dataset takes long.
_FILES = 64

# A row that a step has decided about: the step, the file and the row.
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Decisions of one step about one document, as in its table; several if spans are cut."""

    file: int
    row: int
    step: int
    reason: str
    spans: tuple[int, ...]
    witness: tuple[int, int] | None
    similarity: float | None


@dataclass(frozen=True, slots=True)
class SourceText:
    """A row of a source file, or an entry of an index of other documents.

    file: its path. text: None where it cannot be read. problem: why.
    """

    file: str
    row: int
    id: str | None = None
    text: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step did to a document.

    step: its number, from 1, and name. reason: why. spans: the numbers of the spans that were cut
    out of the text as the step found it; empty if the document was dropped. cut: these spans; None
    where they are not found out. witness: the earlier document with the same key. witness_dropped:
    the step that dropped the witness itself, if one did: nothing may be left of what both say.
    linked: whether the witness is only the first of those linked to it (`components`). similarity:
    of the two, from 0 to 1, where the step compared them. measured: what a filter measured, the
    bound and its parameter, where it says so. passage: the words that the document shares with an
    evaluation, simplified.
    """

    document: SourceText
    step: str
    reason: str
    spans: list[int]
    cut: list[str] | None
    witness: SourceText | None
    witness_dropped: str | None
    linked: bool = False
    similarity: float | None = None
    measured: str | None = None
    passage: str | None = None


@dataclass(frozen=True, slots=True)
class DroppedDocuments:
    """Some of what a recipe dropped.

    documents: dropped by the step and for the reason that are asked for, in the whole dataset.
    shown: decisions about some of them.
    """

    documents: int
    shown: list[Decision]


def show_dropped(
    dataset: Dataset,
    reason: str | None,
    step: int | None,
    document: str | None,
    count: int,
    trust_input: bool = False,
) -> DroppedDocuments:
    """Some of the documents that a dataset's recipe dropped or cut.

    Args:
        dataset: The dataset.
        reason: Only those dropped for this reason.
        step: Only those of this step, from 1.
        document: Only this one: the path of its file, or its number, then a colon and its row.
        count: How many to choose, by a hash of their places: the same ones every time.
        trust_input: Whether to show texts of a source file of another version.

    Raises:
        UsageError: For a dataset without a recipe, or a step, reason or file that is not there.
    """
    recipe = dataset.manifest.settings.recipe
    if recipe is None:
        raise UsageError(f"{dataset.storage.root} was built without a recipe: nothing was dropped.")
    if step is not None and not 1 <= step <= len(recipe.steps):
        names = ", ".join(recipe.step_name(number) for number in range(len(recipe.steps)))
        raise UsageError(f"--step {step}: the steps are {names}.")
    number = None if step is None else step - 1
    counts = [
        dropped
        for report in dataset.manifest.reports
        for dropped in report.counts.dropped
        if number in (None, dropped.step)
    ]
    places = [_place_of(dataset, document)] if document else _choose(dataset, reason, number, count)
    chosen = [
        decision
        for file, row in places
        for decision in _about_row(dataset, file, row, reason, number)
    ]
    reasons = {dropped.reason for dropped in counts}
    if not chosen and document is None and reason is not None and reason not in reasons:
        raise UsageError(
            f"--reason {reason}: no document was dropped for it. The reasons are "
            f"{', '.join(sorted(reasons)) or 'none'}.{did_you_mean(reason, reasons)}"
        )
    documents = sum(of.documents for of in counts if reason in (None, of.reason))
    return DroppedDocuments(documents, _with_texts(dataset, recipe, chosen, trust_input))


def _place_of(dataset: Dataset, document: str) -> tuple[int, int]:
    """The number of the file and the row of `FILE:ROW`."""
    name, _, row = document.rpartition(":")
    if not name or not row.isdecimal():
        raise UsageError(f"--document {document}: with --dropped give FILE:ROW, such as 0:17.")
    files = dataset.manifest.files
    for file in files:
        if name in (file.name, file.path, str(file.index)):
            return file.index, int(row)
    ending = [file.index for file in files if file.path.endswith(f"/{name}")]
    if len(ending) == 1:
        return ending[0], int(row)
    raise UsageError(
        f"--document {document}: the input has {len(ending) or 'no'} files {name}. Give the whole "
        f"path, or the number of the file, from 0 to {len(files) - 1}."
    )


def _choose(
    dataset: Dataset, reason: str | None, step: int | None, count: int
) -> list[tuple[int, int]]:
    """File and row of the documents with the smallest hashes, in order, among some files."""
    best: list[tuple[int, int, int]] = []
    for looked, file in enumerate(_by_hash(dataset)):
        if looked >= _FILES and len(best) == count:
            break
        table = _matching(read_decisions(dataset.storage, file).table, reason, step)
        rows = np.unique(table["row"].to_numpy())
        hashes = splitmix64(rows.astype(np.uint64) ^ np.uint64(_hash(file, 1)))
        order = np.argsort(hashes)[:count]
        best += [(int(hashes[n]), file, int(rows[n])) for n in order.tolist()]
        best = heapq.nsmallest(count, best)
    return sorted((file, row) for _, file, row in best)


def _by_hash(dataset: Dataset) -> list[int]:
    """The files that have decisions, in the order in which some are looked at."""
    names = {file.name for file in dataset.manifest.metadata}
    files = (file.index for file in dataset.manifest.files)
    decided = [file for file in files if file_table("decisions", file) in names]
    return sorted(decided, key=lambda file: _hash(file, 0))


def _hash(file: int, salt: int) -> int:
    return int(splitmix64(splitmix64(np.array([file], np.uint64)) ^ np.uint64(salt))[0])


def _matching(table: pa.Table, reason: str | None, step: int | None) -> pa.Table:
    if reason is not None:
        table = table.filter(pc.equal(table["reason"], reason))
    return table if step is None else table.filter(pc.equal(table["step"], step))


def _about_row(
    dataset: Dataset, file: int, row: int, reason: str | None, step: int | None
) -> Iterator[_Chosen]:
    """The decisions about one row, those of a step that cuts spans as one."""
    table = read_decisions(dataset.storage, file).table
    table = table.filter(pc.equal(table["row"], row))
    by_step: dict[tuple[int, bool], list[dict[str, Any]]] = defaultdict(list)
    for decision in _matching(table, reason, step).to_pylist():
        by_step[decision["step"], decision["span"] is None].append(decision)
    for (number, _), decisions in sorted(by_step.items()):
        first = decisions[0]
        witness = first["witness_file"], first["witness_row"]
        yield _Chosen(
            file=file,
            row=first["row"],
            step=number,
            reason=first["reason"],
            spans=tuple(of["span"] for of in decisions if of["span"] is not None),
            witness=None if witness[0] is None else witness,
            similarity=first["similarity"],
        )


def _with_texts(
    dataset: Dataset, recipe: RecipeRecord, chosen: Sequence[_Chosen], trust_input: bool
) -> list[Decision]:
    places = [(of.step, of.file, of.row) for of in chosen]
    witnesses = [(of.step, *of.witness) for of in chosen if of.witness is not None]
    texts = _read(dataset, recipe, [*places, *witnesses], trust_input)
    curator = None
    if any(of.spans or _measures(recipe.steps[of.step]) for of in chosen):
        with suppress(FineshardsError):  # steps that cannot be loaded say no more
            curator = Curator.of(recipe)
    decisions = []
    for place, of in zip(places, chosen, strict=True):
        document, read = texts[place]
        gone = None if of.witness is None else _dropped_by(dataset, *of.witness)
        again = dict[str, Any]()
        if curator is not None and read is not None:
            again = _judged_again(dataset, recipe, curator, of, read.batch)
        decisions.append(
            Decision(
                document=document,
                step=recipe.step_name(of.step),
                reason=of.reason,
                spans=list(of.spans),
                witness=None if of.witness is None else texts[of.step, *of.witness][0],
                witness_dropped=None if gone is None else recipe.step_name(gone),
                linked=recipe.steps[of.step].rule == "components",
                similarity=of.similarity,
                **({"cut": None} | again),
            )
        )
    return decisions


def _dropped_by(dataset: Dataset, file: int, row: int) -> int | None:
    """The step that dropped a document, if one did. Entries of an index are not dropped."""
    decisions = read_decisions(dataset.storage, file).of_row(row) if file >= 0 else []
    return next((of["step"] for of in decisions if of["span"] is None), None)


def _read(
    dataset: Dataset, recipe: RecipeRecord, wanted: Iterable[Place], trust_input: bool
) -> dict[Place, tuple[SourceText, DocumentBatch | None]]:
    """The documents at some places, as they are shown and as they are; None if one cannot be read.

    Each file is read once.
    """
    files: dict[tuple[int, int], set[Place]] = defaultdict(set)
    for place in wanted:
        files[place[0] if place[1] < 0 else 0, place[1]].add(place)
    shown: dict[Place, tuple[SourceText, DocumentBatch | None]] = {}
    for (step, number), places in sorted(files.items()):
        path, problem = f"index {-1 - number}", ""
        batches: dict[int, DocumentBatch] = {}
        try:
            file = _file_of(dataset, recipe, step, number)
            path = file.path
            file, settings = _texts_of(dataset, file, number)
            path = file.path
            file = as_it_is(file, trust_input) if number >= 0 else file
            for read in documents(file, settings, rows={row for _, _, row in places}):
                batches |= {row: read.among({row}) for row in read.batch.rows.tolist()}
        except FineshardsError as error:
            problem = str(error)
        for place in places:
            one, row = batches.get(place[2]), place[2]
            if one is None:
                why = problem or f"{path} has no text in row {row}."
                shown[place] = SourceText(path, row, problem=why), None
            else:
                id, text = one.rows.ids[0].as_py(), one.batch.strings[0]
                shown[place] = SourceText(path, row, id, text), one
    return shown


def _file_of(dataset: Dataset, recipe: RecipeRecord, step: int, number: int) -> SourceFile:
    """A file as decisions name it: a negative number is that of an index of a step."""
    if number >= 0:
        return dataset.manifest.files[number]
    for of_step, file in recipe.indexes:
        if (of_step, file.index) == (step, -1 - number):
            return file
    raise OutputError(f"step {recipe.step_name(step)} has no index {-1 - number}.")


def _texts_of(dataset: Dataset, file: SourceFile, number: int) -> tuple[SourceFile, Settings]:
    """The source file with the texts of a file, which may be an index, and how it is read."""
    settings = dataset.manifest.settings
    if number >= 0:
        return file, settings
    if file.format != "keys":
        return file, replace(settings, columns=replace(settings.columns, others=(), scores=()))
    folder, _, name = file.path.rpartition("/metadata/keys/")
    manifest = Manifest.load_finished(open_storage(folder))
    return manifest.files[int(name.partition("-")[0])], manifest.settings


def _judged_again(
    dataset: Dataset, recipe: RecipeRecord, curator: Curator, chosen: _Chosen, batch: Batch
) -> dict[str, Any]:
    """What a step cuts out of a text or measures of it, by the names of a Decision's fields."""
    decisions, step = read_decisions(dataset.storage, chosen.file), curator.steps[chosen.step]
    judged = curator.texts(batch, decisions, chosen.step)
    if chosen.spans:
        assert isinstance(step, KeyedSpans)
        return {"cut": step.removed(judged.strings[0], chosen.spans)}
    if isinstance(step, Decontaminate) and (shared := step.witness(judged.strings[0])):
        where = f"line {shared.line:,} of {shared.file}"
        return {"measured": f"{step.ngram} words in a row are in {where}", "passage": shared.ngram}
    if not isinstance(step, Judge) or not _measures(recipe.steps[chosen.step]):
        return {}
    scores = read_scores(dataset.storage, chosen.file)
    if scores is not None:
        judged = judged.with_scores(values_at(scores, judged.rows))
    return {"measured": step.measured(judged, chosen.reason)}


def _measures(step: StepRecord) -> bool:
    """Whether a step may say what it measured. Other people's code does not, and is not run."""
    return not step.keyed and ":" not in step.use


def describe_dropped(dropped: DroppedDocuments) -> list[str]:
    """Each decision with its texts, from the place on that decided."""
    lines = [] if dropped.shown else ["no such document was dropped or cut"]
    for decision in dropped.shown:
        spans, document, witness = decision.spans, decision.document, decision.witness
        did = f"cut {counted(len(spans), 'span')}" if spans else "dropped"
        place, witness_place = _deciding_places(decision)
        lines.append(f"{did} by step {decision.step}: {decision.reason}")
        if decision.measured:
            lines.append(f"  found    {decision.measured}")
        lines.append(f"  source   {document.file}, row {document.row:,}")
        lines.append(f"  id       {document.id or 'none'}")
        lines += _text_lines(document, place)
        cut = decision.cut or []
        lines += [f"  cut      {shortened(part, _SHOWN)}" for part in cut[:_CUTS]]
        lines += [f"  cut      … and {len(cut) - _CUTS:,} more"] * (len(cut) > _CUTS)
        if witness is not None:
            gone, alike = decision.witness_dropped, decision.similarity
            how = "has the same key" + " as the first of these" * (len(spans) > 1)
            if decision.linked:
                how = "is the first of the documents that are linked to it"
            elif alike is not None:
                how = f"has a similarity of {min(round(alike, 4), 0.9999 if alike < 1 else 1):g}"
            also = "" if gone is None else f", and was itself dropped by {gone}"
            lines.append(f"  earlier  {witness.file}, row {witness.row:,}, {how}{also}")
            same = document.text is not None and witness.text == document.text
            lines += ["  text     the same"] if same else _text_lines(witness, witness_place)
        lines.append("")
    changed = sum(bool(decision.spans) for decision in dropped.shown)
    also = f", and {counted(changed, 'cut document')}" if changed else ""
    documents = counted(dropped.documents, "dropped document")
    return [*lines, f"{len(dropped.shown) - changed:,} of {documents}{also}"]


def _deciding_places(decision: Decision) -> tuple[int, int]:
    """Where in the texts of a document and of its witness that begins which decided.

    The first cut, the words of an evaluation, or what is not the same in both. 0 if no place did.
    """
    witness = decision.witness
    text, other = decision.document.text or "", (witness and witness.text) or ""
    if decision.cut:
        beginning = decision.cut[0][:_BEFORE]
        return max(text.find(beginning), 0), max(other.find(beginning), 0)
    if decision.passage:
        # Between the words is what the comparison leaves out.
        words = r"\W+".join(map(re.escape, decision.passage.split()))
        match = re.search(words, text, re.IGNORECASE)
        return match.start() if match else 0, 0
    pairs = enumerate(zip(text, other, strict=False))
    same = next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))
    return (0, 0) if text == other else (same, same)


def _text_lines(source: SourceText, place: int) -> Iterator[str]:
    """The text of a document, from a little before a place on; or why it is not shown."""
    if source.problem is not None:
        yield f"  text     not shown: {source.problem}"
    elif source.text is not None:
        begin = max(place - _BEFORE, 0)
        text = "… " * (begin > 0) + shortened(source.text[begin:], _SHOWN)
        for number, line in enumerate(text.split("\n")):
            yield f"  {'' if number else 'text':<8} {line}"
