"""What the recipe of a dataset dropped or cut: decisions, with the texts that they are about."""

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.curator import Curator
from fineshards.curation.step import Judge
from fineshards.errors import FineshardsError, OutputError, UsageError, did_you_mean
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.recipe_record import RecipeRecord, StepRecord
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.layout import decisions_name
from fineshards.shards.record import replace
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.hash_sample import splitmix64
from fineshards.shards.tables.scores import read_scores, values_at
from fineshards.sources.finding import as_it_is
from fineshards.storage.open import open_storage
from fineshards.wording import counted, shortened
from fineshards.worker.documents import DocumentBatch, documents

# Characters of a text that a person is shown.
_SHOWN = 600
# Files of decisions that are read to choose from: reading all of a large dataset takes long.
_FILES = 64

# A row that a step has decided about: the step, the file and the row.
Place = tuple[int, int, int]
# Where a text may have been cut: after a line, and after a sentence.
_BORDER = re.compile(r"(?<=\n)|(?<=[.!?]) +")


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

    @property
    def place(self) -> Place:
        """The document's row."""
        return self.step, self.file, self.row


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
    similarity: of the two, from 0 to 1, where the step compared them. measured: what a filter
    measured, the bound and its parameter, where it says so.
    """

    document: SourceText
    step: str
    reason: str
    spans: list[int]
    cut: list[str] | None
    witness: SourceText | None
    witness_dropped: str | None
    similarity: float | None = None
    measured: str | None = None


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
    every = (each for report in dataset.manifest.reports for each in report.counts.dropped)
    counts = [each for each in every if number in (None, each.step)]
    places = [_place_of(dataset, document)] if document else _choose(dataset, reason, number, count)
    chosen = [
        each for file, row in places for each in _about_row(dataset, file, row, reason, number)
    ]
    reasons = {each.reason for each in counts}
    if not chosen and document is None and reason is not None and reason not in reasons:
        raise UsageError(
            f"--reason {reason}: no document was dropped for it. The reasons are "
            f"{', '.join(sorted(reasons)) or 'none'}.{did_you_mean(reason, reasons)}"
        )
    documents = sum(each.documents for each in counts if reason in (None, each.reason))
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
    files = [file.index for file in dataset.manifest.files if decisions_name(file.index) in names]
    return sorted(files, key=lambda file: _hash(file, 0))


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
    for each in _matching(table, reason, step).to_pylist():
        by_step[each["step"], each["span"] is None].append(each)
    for (number, _), decisions in sorted(by_step.items()):
        first = decisions[0]
        witness = first["witness_file"], first["witness_row"]
        yield _Chosen(
            file=file,
            row=first["row"],
            step=number,
            reason=first["reason"],
            spans=tuple(each["span"] for each in decisions if each["span"] is not None),
            witness=None if witness[0] is None else witness,
            similarity=first["similarity"],
        )


def _with_texts(
    dataset: Dataset,
    recipe: RecipeRecord,
    chosen: Sequence[_Chosen],
    trust_input: bool,
) -> list[Decision]:
    witnesses = [(each.step, *each.witness) for each in chosen if each.witness is not None]
    texts = _read(dataset, recipe, [*(each.place for each in chosen), *witnesses], trust_input)
    cuts, measured = _details(dataset, recipe, [(each, texts[each.place][1]) for each in chosen])
    shown = []
    for each in chosen:
        gone = None if each.witness is None else _dropped_by(dataset, *each.witness)
        shown.append(
            Decision(
                document=texts[each.place][0],
                step=recipe.step_name(each.step),
                reason=each.reason,
                spans=list(each.spans),
                cut=cuts.get(each),
                witness=None if each.witness is None else texts[each.step, *each.witness][0],
                witness_dropped=None if gone is None else recipe.step_name(gone),
                similarity=each.similarity,
                measured=measured.get(each),
            )
        )
    return shown


def _dropped_by(dataset: Dataset, file: int, row: int) -> int | None:
    """The step that dropped a document, if one did. Entries of an index are not dropped."""
    decisions = read_decisions(dataset.storage, file).of_row(row) if file >= 0 else []
    return next((each["step"] for each in decisions if each["span"] is None), None)


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


def _details(
    dataset: Dataset,
    recipe: RecipeRecord,
    chosen: Sequence[tuple[_Chosen, DocumentBatch | None]],
) -> tuple[dict[_Chosen, list[str]], dict[_Chosen, str]]:
    """The spans that steps cut out of texts, and what filters measured, by judging texts again.

    Steps that cannot be loaded give none.
    """
    cuts: dict[_Chosen, list[str]] = {}
    measured: dict[_Chosen, str] = {}
    again = [
        (each, one.batch)
        for each, one in chosen
        if one is not None and (each.spans or _measures(recipe.steps[each.step]))
    ]
    if not again:
        return cuts, measured
    try:
        curator = Curator.of(recipe)
    except FineshardsError:
        return cuts, measured
    for each, batch in again:
        decisions = read_decisions(dataset.storage, each.file)
        judged = curator.texts(batch, decisions, each.step)
        step = curator.steps[each.step]
        if each.spans:
            after = curator.texts(batch, decisions, each.step + 1)
            cuts[each] = removed(judged.strings[0], after.strings[0])
        elif isinstance(step, Judge):
            scores = read_scores(dataset.storage, each.file)
            if scores is not None:
                judged = judged.with_scores(values_at(scores, judged.rows))
            if (what := step.measured(judged, each.reason)) is not None:
                measured[each] = what
    return cuts, measured


def _measures(step: StepRecord) -> bool:
    """Whether a step may say what it measured. Other people's code does not, and is not run."""
    return not step.keyed and ":" not in step.use


def removed(before: str, after: str) -> list[str]:
    """The parts of a text, lines or sentences, that are not in what is left of it.

    Example:
        >>> removed("one\\ntwo\\nthree. Four.", "one\\nthree.")
        ['two', 'Four.']
    """
    old, new = ([part.strip() for part in _BORDER.split(text)] for text in (before, after))
    changes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    parts = [part for what, i, j, _, _ in changes if what != "equal" for part in old[i:j]]
    return [part for part in parts if part]


def describe_dropped(found: DroppedDocuments) -> list[str]:
    """Each decision with its texts."""
    if not found.shown:
        return ["no document was dropped or cut"]
    lines = []
    for each in found.shown:
        did = f"cut {counted(len(each.spans), 'span')}" if each.spans else "dropped"
        document = each.document
        lines += [
            f"{did} by {each.step}: {each.reason}",
            *([f"  found    {each.measured}"] if each.measured else []),
            f"  source   {document.file}, row {document.row:,}",
            f"  id       {document.id}",
            *_text_lines("text", document),
        ]
        if each.cut is not None:
            lines += [f"  cut      {shortened(part, _SHOWN)}" for part in each.cut]
        if (witness := each.witness) is not None:
            dropped = each.witness_dropped
            also = "" if dropped is None else f", and was itself dropped by {dropped}"
            alike = each.similarity
            how = "has the same key" if alike is None else f"is {100 * alike:.0f} % the same"
            lines += [
                f"  earlier  {witness.file}, row {witness.row:,}, {how}{also}",
                *_text_lines("text", witness),
            ]
        lines.append("")
    return [*lines, f"{len(found.shown):,} of {counted(found.documents, 'dropped document')}"]


def _text_lines(name: str, source: SourceText) -> Iterator[str]:
    if source.problem is not None:
        yield f"  {name:<8} not shown: {source.problem}"
    elif source.text is not None:
        for number, line in enumerate(shortened(source.text, _SHOWN).split("\n")):
            yield f"  {'' if number else name:<8} {line}"
