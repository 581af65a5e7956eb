"""Stats: how many documents each step found and dropped, and what the dataset's are like."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.sql_expression import parse
from fineshards.curation.steps.where import Where
from fineshards.errors import OutputError, UsageError
from fineshards.shards.job.curated_files import is_statistics
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.readable import readable_manifest
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.scores import scores_there
from fineshards.shards.tables.statistics import (
    COUNTS,
    LABELS,
    OTHER_HOSTS,
    SUMS,
    added_generations,
    from_bytes,
)
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.wording import counted, share

# Values of a column, and hosts, that are printed.
_VALUES_SHOWN = 10
_BAR = 30


@dataclass(frozen=True, slots=True)
class Count:
    """A row of the statistics, added up over the generations: see `statistics.SCHEMA`.

    step: from 0. None where a number is not known, or where it means nothing.
    """

    scope: str
    step: int | None
    use: str | None
    reason: str | None
    measure: str
    value: str | None
    at_least: float | None
    below: float | None
    documents: int
    bytes: int
    words: int | None
    lines: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Satisfied:
    """How many of a dataset's documents satisfy a condition on their scores."""

    sql: str
    documents: int
    of: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a dataset, or of one of its steps.

    step: from 1; None for all. hosts_of: the only generation whose hosts are listed, where those of
    several cannot be added up exactly, because each lists its top ones only; otherwise None.
    satisfied: how many documents satisfy a condition, if asked. learned: the share of the dataset's
    tokens that are learned; None unless documents are conversations.
    """

    folder: str
    generations: int
    step: int | None
    hosts_of: int | None
    counts: list[Count]
    satisfied: Satisfied | None
    learned: float | None = None

    def __repr__(self) -> str:
        return f"Stats({self.folder!r}): {counted(len(self.counts), 'count')}; print shows them"

    def __str__(self) -> str:
        return "\n".join(describe_stats(self))


def stats(
    folder: str | os.PathLike[str],
    step: int | None = None,
    generation: int | None = None,
    where: str | None = None,
) -> Stats:
    """Reads the statistics of a finished dataset.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        step: The only step of the recipe to show, from 1. Default: all.
        generation: The dataset as it was then, from 1. Default: the latest.
        where: A condition on the scores that the recipe gave, in SQL as in its step `where`. The
            documents of the dataset that satisfy it are counted.

    Returns:
        A Stats. `counts` has one Count for each thing that was counted; `print` shows a summary.

    Raises:
        OutputError: If the dataset is not finished or has no statistics.
        UsageError: If there is no such step, or for a condition on anything but scores.

    Example:
        >>> import fineshards
        >>> _ = fineshards.build(input=more_documents, output=folder, statistics=True)
        >>> found = fineshards.stats(folder)
        >>> [count.documents for count in found.counts if count.measure == "total"]
        [3]
    """
    storage = open_storage(folder)
    manifest = readable_manifest(storage, generation)
    names = [file.name for file in manifest.metadata if is_statistics(file.name)]
    if not names:
        raise OutputError(
            f"{storage.root} has no statistics: it was built without --statistics, and without "
            "steps. Build it again with --statistics."
        )
    recipe = manifest.settings.recipe
    uses = [] if recipe is None else [each.use for each in recipe.steps]
    if step is not None and not 1 <= step <= len(uses):
        there = f"it has {counted(len(uses), 'step')}" if uses else "it was built without steps"
        raise UsageError(f"--step {step}: {storage.root} has no such step; {there}, from 1.")
    tables = [from_bytes(storage.read(name), storage.path(name)) for name in names]
    table, hosts_of = added_generations(tables)
    if step is not None:
        table = table.filter(pc.equal(table["step"], step - 1))
    places = {name: index for index, name in enumerate(COUNTS.names)}
    columns = [table[name].to_pylist() for name in COUNTS.names]
    found = []
    for row in zip(*columns, strict=True):
        number = row[places["step"]]
        use = None if number is None else uses[number]
        found.append(Count(row[0], number, use, *row[2:]))
    satisfied = None if where is None else _satisfied(storage, manifest, where)
    learned = manifest.learned
    part = None if learned is None else learned / max(1, manifest.totals()["tokens"])
    return Stats(storage.root, len(names), step, hosts_of, found, satisfied, part)


def _satisfied(storage: Storage, manifest: Manifest, sql: str) -> Satisfied:
    """Counts the documents of a dataset that satisfy a condition on their scores."""
    known = manifest.settings.recipe.scores if manifest.settings.recipe else {}
    others = [name for name in parse(sql).columns if name.lower() not in known]
    if not known:
        raise UsageError(f"--where asks for scores, and {storage.root} has none.")
    if others:
        raise UsageError(
            f"--where: sql is {sql!r}, which asks for {', '.join(others)}. Only scores can be "
            f"asked for: {', '.join(known)}."
        )
    step, documents, satisfied = Where(sql), 0, 0
    for report in manifest.reports:
        if not report.counts.documents:
            continue
        file = manifest.files[report.file]
        table = scores_there(storage, file.index)
        dropped = read_decisions(storage, file.index).are_dropped(table["row"].to_numpy())
        table = table.filter(pa.array(~dropped))
        rows, texts = table["row"].to_numpy(), pa.nulls(len(table), pa.large_string())
        scores = {name: table[name].combine_chunks() for name in known}
        batch = Batch(file.index, rows, texts, {}, path=file.path, scores=scores)
        documents += len(table)
        satisfied += sum(reason is None for reason in step.apply(batch).reasons or ())
    return Satisfied(sql, satisfied, documents)


def _describe_satisfied(found: Satisfied) -> str:
    return (
        f"{found.documents:,} of {counted(found.of, 'document')} of the dataset "
        f"({share(found.documents, found.of)}) satisfy {found.sql}"
    )


def describe_stats(found: Stats) -> list[str]:
    """Statistics for a person: the steps, and then the dataset's documents, or one step's."""
    lines = [found.folder]
    if found.satisfied is not None:
        return [*lines, _describe_satisfied(found.satisfied)]
    by_scope: dict[str, list[Count]] = defaultdict(list)
    for count in found.counts:
        by_scope[count.scope].append(count)
    lines += _totals("input", by_scope["input"])
    for before, after in zip(_of_steps(by_scope["in"]), _of_steps(by_scope["kept"]), strict=True):
        lines += _step(before, after, by_scope["dropped"], by_scope["changed"])
    lines += _totals("dataset", by_scope["dataset"])
    if found.learned is not None and found.step is None:
        lines.append(f"  {'learned':<10} {found.learned:.1%} of the tokens")
    scope = "dataset" if found.step is None else "dropped"
    title = "documents of the dataset" if found.step is None else "documents that it drops"
    shown = by_scope[scope]
    for measure, what in (("bytes", "length in bytes"), ("tokens", "length in tokens")):
        lines += _histogram(f"{title}, by {what}", _summed(shown, measure))
    lines += _histogram(f"{title}, by language_score", _tenths(shown))
    for measure in (*LABELS, "host"):
        of = ""
        if measure == "host" and found.hosts_of is not None:
            of = f" (generation {found.hosts_of})"
        lines += _values(f"{title}, by {measure}{of}", _summed(shown, measure))
    return lines


def _of_steps(counts: Iterable[Count]) -> list[Count]:
    return sorted(counts, key=lambda count: count.step or 0)


def _totals(name: str, counts: Iterable[Count]) -> list[str]:
    lines = []
    for total in counts:
        if total.measure == "total":
            numbers = [(getattr(total, each), each) for each in SUMS]
            known = [counted(number, each[:-1]) for number, each in numbers if number is not None]
            lines.append(f"  {name:<10} {', '.join(known)}")
    return lines


def _step(
    before: Count, after: Count, dropped: Iterable[Count], changed: Iterable[Count]
) -> list[str]:
    """A step in a line, each reason in one, and what it changed."""
    name = f"{(before.step or 0) + 1} {before.use}"
    gone = before.documents - after.documents
    lines = [
        f"  {name:<22} {before.documents:>13,} in {after.documents:>13,} kept {gone:>13,} dropped"
        f" ({share(gone, before.documents)})"
    ]
    for each in dropped:
        if each.step == before.step and each.measure == "total":
            lines.append(
                f"    {each.reason:<34} {counted(each.documents, 'document')}, "
                f"{counted(each.bytes, 'byte')}"
            )
    lines += [
        f"    {'(text changed)':<34} {counted(each.documents, 'document')}"
        for each in changed
        if each.step == before.step
    ]
    return lines


def _summed(counts: Iterable[Count], measure: str) -> dict[str, int]:
    """Documents by value or bin, over all reasons; bins ascending."""
    chosen = [count for count in counts if count.measure == measure]
    found: dict[str, int] = defaultdict(int)
    for count in sorted(chosen, key=lambda each: each.at_least or 0.0):
        found[count.value or _bin(count)] += count.documents
    return dict(found)


def _bin(count: Count) -> str:
    first, last = int(count.at_least or 0), int(count.below or 0) - 1
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _tenths(counts: Iterable[Count]) -> dict[str, int]:
    """Documents by score, in tenths."""
    found: dict[int, int] = defaultdict(int)
    for count in counts:
        if count.measure == "language_score":
            # Hundredths, which are a little less or more than they print as.
            hundredths = -1 if count.at_least is None else round(count.at_least * 100)
            found[hundredths // 10] += count.documents
    return {_tenth(number): found[number] for number in sorted(found)}


def _tenth(number: int) -> str:
    if number < 0:
        return "below 0"
    return "1 and more" if number == 10 else f"{number / 10:.1f} to {(number + 1) / 10:.1f}"


def _histogram(title: str, documents: dict[str, int]) -> list[str]:
    """A line for each bin."""
    total, most = sum(documents.values()), max(documents.values(), default=0)
    if not total:
        return []
    return [
        title,
        *(
            f"  {name:>23} {number:>13,} {share(number, total):>8}  "
            f"{'#' * max(1, _BAR * number // most)}"
            for name, number in documents.items()
        ),
    ]


def _values(title: str, documents: dict[str, int]) -> list[str]:
    """The values with the most documents."""
    total = sum(documents.values())
    if not total:
        return []
    named = [name for name in documents if name != OTHER_HOSTS]
    named.sort(key=lambda name: (-documents[name], name))
    lines = [f"  {name:<36} {documents[name]:>13,}" for name in named[:_VALUES_SHOWN]]
    rest = total - sum(documents[name] for name in named[:_VALUES_SHOWN])
    return [title, *lines, *([f"  {'(all others)':<36} {rest:>13,}"] if rest else [])]
