"""The scores of a dataset's documents: their distribution, and what a condition would keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fineshards.curation.batch import Batch
from fineshards.curation.sql_expression import parse
from fineshards.curation.steps.where import Where
from fineshards.errors import UsageError
from fineshards.printable import printable
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.scores import scores_there
from fineshards.storage.base import Storage
from fineshards.wording import counted, share

# Labels that are listed.
_MOST_LABELS = 20
_PARTS = 10


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """The scores of one name.

    step: that gives them, from 1. documents: of the dataset; nulls: those without a score. deciles:
    of numbers, the smallest score, the scores that a tenth, two tenths, … of the documents do not
    exceed, and the largest one. labels: documents by label, of the most frequent labels.
    """

    name: str
    step: int
    documents: int
    nulls: int
    deciles: list[float]
    labels: dict[str, int]


@dataclass(frozen=True, slots=True)
class Satisfied:
    """How many of a dataset's documents satisfy a condition on their scores."""

    sql: str
    documents: int
    of: int


def score_summaries(storage: Storage, manifest: Manifest) -> list[ScoreSummary]:
    """The scores of a dataset's documents, name by name, in the order of the steps.

    Numbers are held in memory, 8 bytes each.
    """
    steps = manifest.settings.recipe.scores if manifest.settings.recipe else {}
    numbers: dict[str, list[np.ndarray]] = {name: [] for name in steps}
    labels: dict[str, Counter[str]] = {name: Counter() for name in steps}
    documents, nulls = 0, Counter[str]()
    for _, table in _of_documents(storage, manifest) if steps else ():
        documents += len(table)
        for name in steps:
            values = table[name].drop_null()
            nulls[name] += len(table) - len(values)
            if pa.types.is_large_string(values.type):
                pairs = values.value_counts().to_pylist()
                labels[name].update({each["values"]: each["counts"] for each in pairs})
            else:
                numbers[name].append(values.to_numpy())
    return [
        ScoreSummary(
            name,
            step + 1,
            documents,
            nulls[name],
            _deciles(np.concatenate([np.empty(0), *numbers[name]])),
            dict(sorted(labels[name].items(), key=lambda each: (-each[1], each[0]))[:_MOST_LABELS]),
        )
        for name, step in steps.items()
    ]


def count_satisfied(storage: Storage, manifest: Manifest, sql: str) -> Satisfied:
    """Counts the documents of a dataset that satisfy a condition.

    Raises UsageError for one that `where` would refuse, or that names anything but scores.
    """
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
    for file, table in _of_documents(storage, manifest):
        rows, texts = table["row"].to_numpy(), pa.nulls(len(table), pa.large_string())
        scores = {name: table[name].combine_chunks() for name in known}
        path = manifest.files[file].path
        reasons = step.apply(Batch(file, rows, texts, {}, path=path, scores=scores)).reasons or ()
        documents += len(table)
        satisfied += sum(reason is None for reason in reasons)
    return Satisfied(sql, satisfied, documents)


def _of_documents(storage: Storage, manifest: Manifest) -> Iterator[tuple[int, pa.Table]]:
    """The scores of those documents of each file that the recipe kept, with the file's number."""
    for report in manifest.reports:
        file = manifest.files[report.file]
        if report.counts.documents:
            table = scores_there(storage, file.index)
            dropped = read_decisions(storage, file.index).are_dropped(table["row"].to_numpy())
            yield file.index, table.filter(pa.array(~dropped))


def _deciles(values: np.ndarray) -> list[float]:
    if not len(values):
        return []
    places = [max(-(-len(values) * part // _PARTS) - 1, 0) for part in range(_PARTS + 1)]
    found: list[float] = np.sort(values)[places].tolist()
    return found


def describe_score(found: ScoreSummary) -> list[str]:
    """A score for a person: deciles, or labels."""
    scored = found.documents - found.nulls
    lines = [f"score {found.name} of step {found.step}: {counted(scored, 'document')}"]
    lines[0] += f", and {found.nulls:,} without it" if found.nulls else ""
    for part, value in enumerate(found.deciles):
        name = {0: "minimum", _PARTS: "maximum"}.get(part, f"{part * 100 // _PARTS} %")
        lines.append(f"  {name:>23} {value:>13,.6g}")
    for label, documents in found.labels.items():
        lines.append(f"  {printable(label):<36} {documents:>13,} {share(documents, scored):>8}")
    rest = scored - sum(found.labels.values())
    if found.labels and rest:
        lines.append(f"  {'(all others)':<36} {rest:>13,} {share(rest, scored):>8}")
    return lines


def describe_satisfied(found: Satisfied) -> str:
    """What satisfies a condition, in a line."""
    return (
        f"{found.documents:,} of {counted(found.of, 'document')} of the dataset "
        f"({share(found.documents, found.of)}) satisfy {found.sql}"
    )
