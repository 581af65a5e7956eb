"""What the steps of a recipe do to a probe of the input. Writes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.curator import Curator
from fineshards.curation.recipe import NamedStep
from fineshards.curation.step import Judge, Keyed, Outcome, Step
from fineshards.curation.steps.other_datasets import SeenIn
from fineshards.errors import clipped, common_length
from fineshards.inspection.estimate import spread
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.shards.tables import marks
from fineshards.shards.tables.candidates import candidates
from fineshards.shards.tables.components import components, edges
from fineshards.shards.tables.decisions import NO_DECISIONS, Decisions
from fineshards.shards.tables.hash_sample import splitmix64
from fineshards.sources.reading import Head, discover_blocks
from fineshards.wording import counted, labelled, share
from fineshards.worker.comparing import alike
from fineshards.worker.indexes import index_records, key_type
from fineshards.worker.kept_rows import batch_of
from fineshards.worker.marking import decisions_of, joins

# Files that are looked at, and parts of the probe: so many that they are from all over the input.
_FILES, _PARTS = 16, 32
_LEAST_PART = 1 << 20
# Characters of a text that are shown.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A document of the probe: its source, and a part of its text as the step found it."""

    file: str
    row: int
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """A document that a step drops, cuts or rewrites.

    reason: why; `changed` of a document that stays, with another text. measured: what a filter
    measured, the bound and its parameter, where it says so. witness: the earlier one with the same
    key. after: the text that the step gives it. It and the text before begin where they differ.
    """

    document: Excerpt
    reason: str
    measured: str | None = None
    witness: Excerpt | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step does to the documents of the probe that reach it.

    name: its number, from 1, and what the recipe calls it. documents, text_bytes: that reach it.
    kept, bytes_kept: what is left after it. changed: kept documents with another text. dropped: by
    reason. seconds: of one core. examples: of what it drops, then of what it changes.
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
    indexes: Sequence[tuple[int, SourceFile]],
) -> Check:
    """Runs steps over about `size` bytes of text from all over the input.

    columns: with those that the steps read. examples: how many each step gives of what it drops,
    and of what it changes. indexes: see RecipeRecord; they are read whole.

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
    marked = _marked(step, number, known, batches) if isinstance(step, Keyed) else {}
    pairs = [
        (batch, curator.decide(number, batch, marked.get(batch.file, NO_DECISIONS)))
        for batch in batches
    ]
    seconds = time.perf_counter() - began
    if isinstance(step, Judge):
        for batch, outcome in pairs:
            curator.compare(step, number, batch, outcome)
            curator.compare_all(step, number, batch, outcome)
    kept = [curator.left(number, batch, outcome) for batch, outcome in pairs]
    reasons = Counter(reason for _, outcome in pairs for reason in outcome.reasons or () if reason)
    result = StepResult(
        name=curator.names[number],
        keyed=isinstance(step, Keyed),
        documents=sum(map(len, batches)),
        text_bytes=_text_bytes(batches),
        kept=sum(map(len, kept)),
        bytes_kept=_text_bytes(kept),
        changed=sum(len(outcome.changed(batch.strings)) for batch, outcome in pairs),
        dropped=dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0]))),
        seconds=seconds,
        examples=_examples(step, pairs, marked, files, examples),
    )
    return result, [batch for batch in kept if len(batch)]


def _marked(
    step: Keyed, number: int, known: Sequence[marks.Records], batches: Sequence[Batch]
) -> dict[int, Decisions]:
    """Compares the keys of all documents of the probe; returns the decisions by file."""
    records = [np.empty(0, key_type(step)), *known]
    for batch in batches:
        keys = step.keys(batch)
        positions = marks.positions(batch.file, batch.rows[keys.owners])
        records.append(marks.key_records(keys.keys, positions, keys.spans))
    joined = np.concatenate(records)
    if step.compared:
        found = _compared(step, candidates(joined, step.compared), batches)
    elif joins(step):
        found = edges(joined)
    else:
        found = marks.mark(joined, only_external=isinstance(step, SeenIn))
    if joins(step):
        found = components(found)
    return {
        file: Decisions(decisions_of(part, number, step.reason))
        for file, part in marks.by_file(found)
    }


def _compared(step: Keyed, pairs: marks.Records, batches: Sequence[Batch]) -> marks.Records:
    """The pairs of the probe that are alike, as marks or as links."""
    wanted = np.concatenate([pairs["position"], pairs["witness"]])
    contents: dict[int, npt.NDArray[np.uint64]] = {}
    for batch in batches:
        batch = batch.keep(np.isin(marks.positions(batch.file, batch.rows), wanted))
        places = marks.positions(batch.file, batch.rows).tolist()
        contents |= dict(zip(places, step.contents(batch), strict=True))
    return alike(step, pairs, contents)


def _examples(
    step: Step,
    pairs: Sequence[tuple[Batch, Outcome]],
    marked: Mapping[int, Decisions],
    files: Sequence[SourceFile],
    count: int,
) -> list[Example]:
    """Documents that a step drops, and that it changes; a hash of the place chooses."""
    dropped = [
        (batch, index, reason)
        for batch, outcome in pairs
        for index, reason in enumerate(outcome.reasons or ())
        if reason is not None
    ]
    changed = [
        (batch, index, outcome.texts[index])
        for batch, outcome in pairs
        if outcome.texts is not None
        for index in outcome.changed(batch.strings)
    ]
    batches = [batch for batch, _ in pairs]
    return [
        Example(
            _excerpt(batch, index, files),
            str(reason),
            step.measured(batch.only(index), reason) if isinstance(step, Judge) else None,
            _witness(batches, marked.get(batch.file, NO_DECISIONS), int(batch.rows[index]), files),
        )
        for batch, index, reason in sorted(dropped, key=_hash)[:count]
    ] + [
        _change(batch, index, after, files)
        for batch, index, after in sorted(changed, key=_hash)[:count]
    ]


def _change(batch: Batch, index: int, after: str, files: Sequence[SourceFile]) -> Example:
    """A document that stays with another text; both from shortly before they differ."""
    same = common_length(batch.strings[index], after)
    start = max(same - _SHOWN // 4, 0)
    before = _excerpt(batch, index, files, start)
    return Example(before, "changed", after=clipped(after, _SHOWN, start))


def _hash(found: tuple[Batch, int, str]) -> int:
    batch, index, _ = found
    place: npt.NDArray[np.uint64] = marks.positions(batch.file, batch.rows[index : index + 1])
    return int(splitmix64(place)[0])


def _excerpt(batch: Batch, index: int, files: Sequence[SourceFile], start: int = 0) -> Excerpt:
    text = clipped(batch.strings[index], _SHOWN, start)
    return Excerpt(files[batch.file].path, int(batch.rows[index]), text)


def _witness(
    batches: Sequence[Batch], marked: Decisions, row: int, files: Sequence[SourceFile]
) -> Excerpt | None:
    """The earlier document with the same key; None if it is not one of the probe."""
    for decision in marked.of_row(row)[:1]:
        for batch in batches:
            at = batch.rows.tolist()
            if batch.file == decision["witness_file"] and decision["witness_row"] in at:
                return _excerpt(batch, at.index(decision["witness_row"]), files)
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
            lines += ["", f"{step.name}, for example:"]
        for example in step.examples:
            lines.append(f"{example.reason}: {_place(example.document)}")
            if example.measured is not None:
                lines += labelled("found", example.measured)
            lines += labelled("text", example.document.text)
            if example.after is not None:
                lines += labelled("after", example.after)
            if example.witness is not None:
                lines += labelled("earlier", _place(example.witness))
                lines += labelled("text", example.witness.text)
    return lines


def _place(found: Excerpt) -> str:
    return f"{found.file}, row {found.row:,}"
