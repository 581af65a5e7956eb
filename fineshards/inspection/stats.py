"""Stats: what each step dropped, what the dataset's documents are like, and values of a column."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from fineshards.curation.batch import Batch
from fineshards.curation.steps.where import Where, columns_read
from fineshards.errors import OutputError, UsageError, printable
from fineshards.exports.source_columns import ColumnReader, scores_of, types_in_sources
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.split_hash import host_names
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.scores import scores_there
from fineshards.shards.tables.statistics import SUMS, merged, read_file
from fineshards.sources.roots import opened
from fineshards.sources.rows import LABEL_COLUMNS
from fineshards.storage.open import open_storage
from fineshards.wording import counted, share, warn_of_steps

# Values of a column that are listed.
TOP = 10
_BAR = 30
# Documents whose values of a column are read at once: a pass over shuffled sources is slow.
_DOCUMENTS_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Count:
    """A row of the statistics, added up over the source files: see `statistics.SCHEMA`.

    what: `input`, `dropped`, `changed`, `dataset`, `bytes`, `tokens`, `dump` or `language`. step:
    from 1. value: the reason, or that of the column. at_least: the bin. tokens: None if unknown.
    """

    what: str
    step: int | None
    value: str | None
    at_least: int | None
    documents: int
    bytes: int
    words: int
    lines: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class StepCount:
    """Documents that a step of the recipe finds, keeps, and keeps with another text.

    step: from 1. use: its name.
    """

    step: int
    use: str
    documents: int
    kept: int
    changed: int


@dataclass(frozen=True, slots=True)
class ValueCount:
    """Documents of the dataset with one value of a column, and their tokens. value: may be null."""

    value: str | None
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of a column of the dataset's documents; of `url` their hosts.

    values: those with the most documents first. others, other_values: the documents with a value
    that is not listed, and the number of these.
    """

    column: str
    values: list[ValueCount]
    others: int
    other_values: int


@dataclass(frozen=True, slots=True)
class Satisfied:
    """How many of a dataset's documents satisfy a condition on their scores."""

    sql: str
    documents: int
    of: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a dataset, or of one of its steps; or what was asked for instead.

    step: from 1; None for all. steps: those of the recipe, or the one. satisfied: how many
    documents satisfy a condition, if asked. column: its values, if asked. learned: the share of the
    dataset's tokens that are learned; None unless documents are conversations. warnings: of sources
    of which a step dropped nearly all documents.
    """

    folder: str
    step: int | None
    steps: list[StepCount]
    counts: list[Count]
    satisfied: Satisfied | None
    column: ColumnValues | None
    learned: float | None = None
    warnings: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"Stats({self.folder!r}): {counted(len(self.counts), 'count')}; print shows them"

    def __str__(self) -> str:
        return "\n".join(describe_stats(self))


def stats(
    folder: str | os.PathLike[str],
    step: int | None = None,
    generation: int | None = None,
    where: str | None = None,
    column: str | None = None,
    top: int = TOP,
    sources: Sequence[str] = (),
    trust_input: bool = False,
) -> Stats:
    """Reads the statistics of a finished dataset.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        step: The only step of the recipe to show, from 1. Default: all.
        generation: The dataset as it was then, from 1. Default: the latest.
        where: A condition on the scores that the recipe gave, in SQL as in its step `where`. The
            documents of the dataset that satisfy it are counted, and nothing else.
        column: A column of the sources, a score, `id` or `file`, whose values are counted, and
            nothing else; of `url` the hosts. Needs no statistics, and reads the sources.
        top: How many values of the column to list.
        sources: Where the source files are now, for `column`: each is `OLD=NEW`.
        trust_input: Read source files of the same size, but another time or version, for `column`.

    Returns:
        A Stats. `counts` has one Count for each thing that was counted; `print` shows a summary.

    Raises:
        OutputError: If the dataset is not finished or has no statistics.
        UsageError: If there is no such step, or for a condition on anything but scores.
        InputError: If a column cannot be read from the sources.

    Example:
        >>> import fineshards
        >>> _ = fineshards.build(input=more_documents, output=folder, statistics=True)
        >>> statistics = fineshards.stats(folder)
        >>> [count.documents for count in statistics.counts if count.what == "dataset"]
        [3]
    """
    if column is None and (sources or trust_input):
        raise UsageError("--sources and --trust_input go with --column.")
    dataset = opened(open_storage(folder), generation, sources)
    storage, manifest = dataset.storage, dataset.manifest
    recipe = manifest.settings.recipe
    uses = [] if recipe is None else [each.use for each in recipe.steps]
    if step is not None and not 1 <= step <= len(uses):
        there = f"it has {counted(len(uses), 'step')}" if uses else "it was built without steps"
        raise UsageError(f"--step {step}: {storage.root} has no such step; {there}, from 1.")
    if where is not None:
        return Stats(storage.root, step, [], [], _satisfied(dataset, where), None)
    if column is not None:
        values = _column_values(dataset, column, top, trust_input)
        return Stats(storage.root, step, [], [], None, values)
    if not manifest.settings.statistics:
        raise OutputError(
            f"{storage.root} has no statistics: it was built without --statistics, and without "
            "steps. Build it again with --statistics."
        )
    table = merged(read_file(storage, file.index) for file in manifest.files)
    from_one = pc.add(table["step"], 1)  # tables count from 0
    counts = [Count(**row) for row in table.set_column(1, "step", from_one).to_pylist()]
    steps = _step_counts(uses, counts)
    if step is not None:
        counts = [count for count in counts if count.step == step]
        steps = [steps[step - 1]]
    learned = manifest.learned
    part = None if learned is None else learned / max(1, manifest.totals["tokens"])
    warnings = warn_of_steps(manifest, step)
    return Stats(storage.root, step, steps, counts, None, None, part, warnings)


def _step_counts(uses: Sequence[str], counts: Sequence[Count]) -> list[StepCount]:
    """What steps of the given names find and keep."""
    sums = Counter[tuple[str, int | None]]()
    for count in counts:
        sums[count.what, count.step] += count.documents
    steps, reach = [], sums["input", None]
    for number, use in enumerate(uses, 1):
        kept = reach - sums["dropped", number]
        steps.append(StepCount(number, use, reach, kept, sums["changed", number]))
        reach = kept
    return steps


def _satisfied(dataset: Dataset, sql: str) -> Satisfied:
    """Counts the documents of a dataset that satisfy a condition on their scores."""
    storage, manifest = dataset.storage, dataset.manifest
    available = manifest.settings.recipe.scores if manifest.settings.recipe else {}
    unknown = [name for name in columns_read(sql) if name.lower() not in available]
    if not available:
        raise UsageError(f"--where asks for scores, and {storage.root} has none.")
    if unknown:
        raise UsageError(
            f"--where: sql is {sql!r}, which asks for {', '.join(unknown)}. Only scores can be "
            f"asked for: {', '.join(available)}."
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
        scores = {name: table[name].combine_chunks() for name in available}
        batch = Batch(file.index, rows, texts, {}, path=file.path, scores=scores)
        documents += len(table)
        satisfied += sum(reason is None for reason in step.apply(batch).reasons or ())
    return Satisfied(sql, satisfied, documents)


def _column_values(dataset: Dataset, column: str, top: int, trust_input: bool) -> ColumnValues:
    """Counts the values of a column, without redacted documents."""
    read, sums = _reader(dataset, column, trust_input), ["documents", "tokens"]
    kinds = [pa.string(), pa.int64(), pa.int64()]
    table = pa.schema(zip(["value", *sums], kinds, strict=True)).empty_table()
    for sources in _documents(dataset):
        values = read(sources)
        try:
            values = values.cast(pa.string())
        except pa.ArrowNotImplementedError:
            raise UsageError(
                f"--column {column}: its type is {values.type}, and only plain values are counted."
            ) from None
        if column == "url":
            values = host_names(values.combine_chunks()).cast(pa.string())
        more = pa.table({"value": values, **{name: sources[name] for name in sums}})
        table = pa.concat_tables([table, more]).group_by("value", use_threads=False)
        table = table.aggregate([(name, "sum") for name in sums]).rename_columns(["value", *sums])
    table = table.sort_by([("documents", "descending"), ("value", "ascending")])
    listed, rest = table.slice(0, top), table.slice(top)
    return ColumnValues(
        column,
        [ValueCount(**row) for row in listed.to_pylist()],
        pc.sum(rest["documents"]).as_py() or 0,
        len(rest),
    )


def _reader(dataset: Dataset, column: str, trust: bool) -> Callable[[pa.Table], pa.ChunkedArray]:
    """What gives the values of a column, of documents that are given by their files and rows."""
    manifest = dataset.manifest
    if column in ("file", "id"):
        return lambda sources: sources[column]
    if manifest.settings.recipe and column in manifest.settings.recipe.scores:
        return lambda sources: scores_of(dataset, sources)[column]
    reader = ColumnReader(manifest, types_in_sources(manifest, [column], trust), trust)
    return lambda sources: reader.read(sources).as_text().table[column]


def _documents(dataset: Dataset) -> Iterator[pa.Table]:
    """The documents of a dataset: file, row, id, and the documents and tokens that count as them.

    A document in several shards may come several times, and is one document in all.
    """
    parts: list[pa.Table] = []
    names, last = ["file", "row", "id", "documents", "tokens"], len(dataset.manifest.shards) - 1
    for position in range(last + 1):
        table = dataset.columns(position, [*names[:3], "start", "length", "redacted"])
        table = table.filter(pc.equal(table["redacted"], 0))
        begins = pc.equal(table["start"], 0).cast(pa.int64())
        columns = [table["file"].cast(pa.string()), table["row"], table["id"], begins]
        parts.append(pa.table([*columns, table["length"]], names))
        if position == last or sum(map(len, parts)) > _DOCUMENTS_READ:
            grouped = pa.concat_tables(parts).group_by(names[:3], use_threads=False)
            yield grouped.aggregate([(name, "sum") for name in names[3:]]).rename_columns(names)
            parts = []


def describe_stats(statistics: Stats) -> list[str]:
    """Statistics for a person: the steps, and then the dataset's documents; or what was asked."""
    lines = [statistics.folder]
    if (part := statistics.satisfied) is not None:
        of = f"{counted(part.of, 'document')} of the dataset ({share(part.documents, part.of)})"
        return [*lines, f"{part.documents:,} of {of} satisfy {part.sql}"]
    if statistics.column is not None:
        return [*lines, *_describe_column(statistics.column)]
    counts: dict[str, list[Count]] = defaultdict(list)
    for count in statistics.counts:
        counts[count.what].append(count)
    lines += _total("input", counts["input"])
    for step in statistics.steps:
        lines += _step(step, [of for of in statistics.counts if of.step == step.step])
    lines += [f"  warning: {printable(line)}" for line in statistics.warnings]
    lines += _total("dataset", counts["dataset"])
    if statistics.learned is not None and statistics.step is None:
        lines.append(f"  {'learned':<10} {statistics.learned:.1%} of the tokens")
    for what in ("bytes", "tokens"):
        lines += _histogram(f"documents of the dataset, by length in {what}", counts[what])
    for what in (*LABEL_COLUMNS, "http_body"):
        values = sorted(counts[what], key=lambda count: (-count.documents, count.value))
        if values:
            lines.append(f"documents of the dataset, by {what}")
            lines += [_value(count.value, count.documents) for count in values[:TOP]]
            lines += _others(len(values[TOP:]), sum(count.documents for count in values[TOP:]))
    return lines


def _describe_column(values: ColumnValues) -> Iterator[str]:
    of = "host of url" if values.column == "url" else values.column
    yield f"documents and tokens of the dataset, by {of}"
    for value in values.values:
        yield f"{_value(value.value, value.documents)} {value.tokens:>15,}"
    yield from _others(values.other_values, values.others)


def _value(value: str | None, documents: int) -> str:
    name = "(none)" if value is None else printable(value)
    return f"  {name:<36} {documents:>13,}"


def _others(values: int, documents: int) -> list[str]:
    return [_value(f"({counted(values, 'other value')})", documents)] if values else []


def _total(name: str, totals: Iterable[Count]) -> list[str]:
    lines = []
    for total in totals:
        sums = {name.removesuffix("s"): getattr(total, name) for name in SUMS}
        amounts = [counted(number, noun) for noun, number in sums.items() if number is not None]
        lines.append(f"  {name:<10} {', '.join(amounts)}")
    return lines


def _step(step: StepCount, counts: Iterable[Count]) -> list[str]:
    """A step in a line, each reason in one, and what it changed."""
    name, gone = f"{step.step} {step.use}", step.documents - step.kept
    lines = [
        f"  {name:<22} {step.documents:>13,} in {step.kept:>13,} kept {gone:>13,} dropped"
        f" ({share(gone, step.documents)})"
    ]
    for count in counts:
        if count.what == "dropped":
            sums = f"{counted(count.documents, 'document')}, {counted(count.bytes, 'byte')}"
            lines.append(f"    {printable(count.value or ''):<34} {sums}")
    if step.changed:
        lines.append(f"    {'(text changed)':<34} {counted(step.changed, 'document')}")
    return lines


def _histogram(title: str, counts: Sequence[Count]) -> list[str]:
    """A line for each bin, which are sorted."""
    if not counts:
        return []
    documents, lines = [count.documents for count in counts], [title]
    for count in counts:
        bar = "#" * max(1, _BAR * count.documents // max(documents))
        part = share(count.documents, sum(documents))
        lines.append(f"  {_bin(count.at_least or 0):>23} {count.documents:>13,} {part:>8}  {bar}")
    return lines


def _bin(at_least: int) -> str:
    last = max(0, 2 * at_least - 1)
    return f"{at_least:,}" if at_least == last else f"{at_least:,} to {last:,}"
