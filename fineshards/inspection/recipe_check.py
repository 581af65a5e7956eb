"""What the steps of a recipe do to a probe of the input. Writes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator
from fineshards.curation.recipe import NamedStep
from fineshards.curation.step import Judge, Keyed, KeyedSpans, Outcome
from fineshards.curation.steps.other_datasets import SeenIn
from fineshards.inspection.estimate import spread
from fineshards.shards.job.job import Columns
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables import marks
from fineshards.shards.tables.hash_sample import splitmix64
from fineshards.sources.reading import Head, discover_blocks
from fineshards.wording import counted, share
from fineshards.worker.indexes import index_records, key_type
from fineshards.worker.kept_rows import batch_of

# Files that are looked at, and parts of the probe: so many that they are from all over the input.
_FILES, _PARTS = 16, 32
_LEAST_PART = 1 << 20
# Characters of a text that are shown.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A document of the probe: its source, and the beginning of its text as the step found it."""

    file: str
    row: int
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """A document that a step drops, or cuts. witness: the earlier one with the same key."""

    document: Place
    reason: str
    witness: Place | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step does to the documents of the probe that reach it.

    name: its number, from 1, and what the recipe calls it. documents, text_bytes: that reach it.
    kept, bytes_kept: what is left after it. changed: kept documents with another text. dropped: by
    reason. seconds: of one core. examples: of what it drops or cuts.
    """

    name: str
    keyed: bool
    documents: int
    text_bytes: int
    kept: int
    bytes_kept: int
    changed: int
    dropped: dict[str, int]
    seconds: float
    examples: list[Example]


@dataclass(frozen=True, slots=True)
class Check:
    """What a recipe does to a probe of the input.

    files: that the probe is from, of `files_total`. documents, text_bytes: of the probe. nulls,
    rejected: its rows without text, or that cannot be read. whole: whether it is the whole input.
    """

    files: int
    files_total: int
    documents: int
    text_bytes: int
    nulls: int
    rejected: int
    whole: bool
    steps: list[StepResult]


@dataclass
class _Probe:
    batches: list[Batch] = field(default_factory=list)
    files: set[int] = field(default_factory=set)
    nulls: int = 0
    rejected: int = 0
    whole: bool = True


def check_recipe(
    steps: Sequence[NamedStep],
    files: Sequence[SourceFile],
    columns: Columns,
    size: int,
    examples: int,
    indexes: Sequence[tuple[int, SourceFile]] = (),
) -> Check:
    """Runs steps over about `size` bytes of text from all over the input.

    columns: with those that the steps read. examples: how many are given for each step. indexes:
    see RecipeRecord; they are read whole.

    Raises FineshardsError for what a job would refuse too: a missing column, a document that a step
    cannot judge.
    """
    probe = _read(files, columns, size)
    curator, results, batches = Curator(steps), [], probe.batches
    for number in range(len(steps)):
        known = [
            index_records(step, file, columns, size)
            for of_step, file in indexes
            if of_step == number and isinstance(step := curator.steps[number], Keyed)
        ]
        result, batches = _run(curator, number, known, batches, files, examples)
        results.append(result)
    return Check(
        files=len(probe.files),
        files_total=len(files),
        documents=sum(map(len, probe.batches)),
        text_bytes=_text_bytes(probe.batches),
        nulls=probe.nulls,
        rejected=probe.rejected,
        whole=probe.whole,
        steps=results,
    )


def _read(files: Sequence[SourceFile], columns: Columns, size: int) -> _Probe:
    """Documents from all over the input, in its order: the same ones every time."""
    chosen = sorted(spread(len(files))[:_FILES])
    probe = _Probe(whole=len(chosen) == len(files))
    part = max(size // _PARTS, _LEAST_PART)
    found = [(files[n], discover_blocks(files[n], columns, part)) for n in chosen]
    blocks = [(file, block) for file, of_file in found for block in of_file]
    limit = max(part, size // max(len(blocks), 1))
    taken, wanted = 0, []
    for number in spread(len(blocks)):
        wanted.append(number)
        taken += min(blocks[number][1].bytes, limit)
        if taken >= size:
            break
    probe.whole &= len(wanted) == len(blocks)
    for file, block in (blocks[number] for number in sorted(wanted)):
        head = Head(file, columns, block, limit)
        for rows in head:
            probe.nulls += rows.texts.null_count
            probe.rejected += len(rows.bad)
            probe.batches.append(batch_of(rows.with_text(), file))
        probe.files.add(file.index)
        probe.whole &= head.share == 1
    return probe


def _run(
    curator: Curator,
    number: int,
    known: Sequence[marks.Records],
    batches: list[Batch],
    files: Sequence[SourceFile],
    examples: int,
) -> tuple[StepResult, list[Batch]]:
    """Does a step; returns what it did, and the documents that are left.

    known: the keys of its indexes.
    """
    step = curator.steps[number]
    began = time.perf_counter()
    if isinstance(step, Keyed):
        decided = _mark(step, known, batches)
    else:
        assert isinstance(step, Judge)
        decided = [_judge(step, batch) for batch in batches]
    seconds = time.perf_counter() - began
    pairs = list(zip(batches, decided, strict=True))
    if isinstance(step, Judge):
        for batch, each in pairs:
            curator.compare(step, number, batch, each.reasons, each.texts)
            curator.compare_all(step, number, batch, Outcome(each.reasons, each.texts))
    kept = [each.kept(batch) for batch, each in pairs]
    reasons = Counter(reason for each in decided for reason in each.reasons or () if reason)
    result = StepResult(
        name=curator.names[number],
        keyed=isinstance(step, Keyed),
        documents=sum(map(len, batches)),
        text_bytes=_text_bytes(batches),
        kept=sum(map(len, kept)),
        bytes_kept=_text_bytes(kept),
        changed=sum(len(each.changed(batch)) for batch, each in pairs),
        dropped=dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0]))),
        seconds=seconds,
        examples=_examples(pairs, files, examples),
    )
    return result, [batch for batch in kept if len(batch)]


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a step makes of a batch: see Outcome. witnesses: positions, by number in the batch."""

    reasons: Sequence[str | None] | None
    texts: Sequence[str] | None
    witnesses: dict[int, int] = field(default_factory=dict)

    def kept(self, batch: Batch) -> Batch:
        """The documents of the batch that are left."""
        left = batch if self.texts is None else batch.with_texts(self.texts)
        if self.reasons is None:
            return left
        return left.keep(np.array([reason is None for reason in self.reasons], np.bool_))

    def reason(self, index: int) -> str | None:
        """Why a document is dropped."""
        return None if self.reasons is None else self.reasons[index]

    def dropped(self) -> list[int]:
        """The numbers of the documents that are dropped."""
        return [n for n, reason in enumerate(self.reasons or ()) if reason is not None]

    def changed(self, batch: Batch) -> list[int]:
        """The numbers of the documents that are kept with another text."""
        if self.texts is None:
            return []
        pairs = enumerate(zip(self.texts, batch.strings, strict=True))
        return [n for n, (new, old) in pairs if new != old and self.reason(n) is None]


def _judge(step: Judge, batch: Batch) -> _Decided:
    return _Decided(*step.apply(batch))


def _mark(step: Keyed, known: Sequence[marks.Records], batches: Sequence[Batch]) -> list[_Decided]:
    """Compares the keys of all documents of the probe. known: the keys of indexes."""
    records = [np.empty(0, key_type(step)), *known]
    for batch in batches:
        keys = step.keys(batch)
        positions = marks.positions(batch.file, batch.rows[keys.owners])
        records.append(marks.key_records(keys.keys, positions, keys.spans))
    joined = np.concatenate(records)
    if getattr(step, "rule", "earlier") == "components":
        found = marks.components(marks.edges(joined))
    else:
        found = marks.mark(joined, only_external=isinstance(step, SeenIn))
    return [_marked(step, batch, found) for batch in batches]


def _marked(step: Keyed, batch: Batch, found: marks.Records) -> _Decided:
    positions = marks.positions(batch.file, batch.rows)
    reasons: list[str | None] = [None] * len(batch)
    texts = list(batch.strings)
    first = np.searchsorted(found["position"], positions)
    stop = np.searchsorted(found["position"], positions, side="right")
    witnesses = {}
    for index in np.flatnonzero(stop > first).tolist():
        of_document = found[first[index] : stop[index]]
        witnesses[index] = int(of_document["witness"][0])
        if isinstance(step, KeyedSpans):
            left, reason = step.cut(texts[index], of_document["span"].tolist())
            texts[index] = "" if left is None else left
            reasons[index] = reason if left is None else None
        else:
            reasons[index] = step.reason
    return _Decided(reasons, texts, witnesses)


def _examples(
    pairs: Sequence[tuple[Batch, _Decided]], files: Sequence[SourceFile], count: int
) -> list[Example]:
    """Documents that a step drops or, if it drops none, changes; a hash of the place chooses."""
    found = [(batch, each, index) for batch, each in pairs for index in each.dropped()]
    if not found:
        found = [(batch, each, index) for batch, each in pairs for index in each.changed(batch)]
    chosen = sorted(found, key=lambda each: _hash(each[0], each[2]))[:count]
    batches = [batch for batch, _ in pairs]
    return [
        Example(
            _place(batch, index, files),
            each.reason(index) or "changed",
            _witness(batches, each.witnesses[index], files) if index in each.witnesses else None,
        )
        for batch, each, index in chosen
    ]


def _hash(batch: Batch, index: int) -> int:
    place: npt.NDArray[np.uint64] = marks.positions(batch.file, batch.rows[index : index + 1])
    return int(splitmix64(place)[0])


def _place(batch: Batch, index: int, files: Sequence[SourceFile]) -> Place:
    text = batch.strings[index][:_SHOWN]
    return Place(files[batch.file].path, int(batch.rows[index]), text)


def _witness(batches: Sequence[Batch], position: int, files: Sequence[SourceFile]) -> Place | None:
    """The document at a position; None if it is an entry of an index of other documents."""
    positions = np.array([position], np.uint64)
    if marks.is_external(positions)[0]:
        return None
    file, row = int(marks.file_of(positions)[0]), int(marks.row_of(positions)[0])
    for batch in batches:
        if batch.file == file and row in (at := batch.rows.tolist()):
            return _place(batch, at.index(row), files)
    return None


def _text_bytes(batches: Sequence[Batch]) -> int:
    return sum(pc.sum(pc.binary_length(batch.texts)).as_py() or 0 for batch in batches)


def describe_check(check: Check) -> list[str]:
    """What each step keeps, as a table, and examples of what it drops."""
    probe = "the whole input" if check.whole else "a probe of the input"
    lines = [
        f"{probe}: {counted(check.documents, 'document')}, {check.text_bytes / 1e6:,.1f} MB of "
        f"text, from {check.files:,} of {counted(check.files_total, 'file')}"
    ]
    if check.nulls or check.rejected:
        lines.append(f"  {counted(check.nulls, 'row')} without text, {check.rejected:,} rejected")
    widest = max([len(step.name) for step in check.steps] + [len("step")])
    head = f"{'documents':>11} {'kept':>11} {'dropped':>9} {'of text':>9} {'MB/s':>7}"
    lines += ["", f"{'step':<{widest}}  {head}"]
    for step in check.steps:
        lost = step.documents - step.kept
        rate = step.text_bytes / 1e6 / max(step.seconds, 1e-9)
        lines.append(
            f"{step.name:<{widest}}  {step.documents:>11,} {step.kept:>11,} "
            f"{share(lost, step.documents):>9} "
            f"{share(step.text_bytes - step.bytes_kept, step.text_bytes):>9} {rate:>7,.1f}"
        )
        for reason, documents in step.dropped.items():
            lines.append(f"{'':<{widest}}  {documents:>11,} {reason}")
        if step.changed:
            lines.append(f"{'':<{widest}}  {step.changed:>11,} changed")
    last = check.steps[-1]
    lines += [
        "",
        f"left: {counted(last.kept, 'document')} ({share(last.kept, check.documents)}), "
        f"{share(last.bytes_kept, check.text_bytes)} of the text",
    ]
    if not check.whole and any(step.keyed for step in check.steps):
        lines.append("Keys were compared within the probe only: in the whole input more are equal.")
    for step in check.steps:
        if step.examples:
            lines += ["", f"{step.name}, for example"]
        for example in step.examples:
            lines += _place_lines(f"{example.reason}: ", example.document)
            if example.witness is not None:
                lines += _place_lines("    as in ", example.witness)
    return lines


def _place_lines(before: str, place: Place) -> list[str]:
    """Where a document is, and the beginning of its text in one line."""
    return [f"  {before}{place.file}, row {place.row:,}", f"      {place.text!r}"]
