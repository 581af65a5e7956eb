"""Checks of the scores that a recipe gave documents, as part of verify: without sources."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fineshards.errors import FineshardsError
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.curated_files import scores_name
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.tables.scores import read_scores
from fineshards.wording import counted


def check_scores(dataset: Dataset) -> Iterator[str]:
    """The scores of each source file are those of the recipe, of the documents that got some."""
    manifest = dataset.manifest
    there = {file.name for file in manifest.metadata}
    steps = manifest.settings.recipe.scores if manifest.settings.recipe else {}
    for report in manifest.reports:
        name, path = scores_name(report.file), manifest.files[report.file].path
        if name not in there:
            if steps and _reached(report, min(steps.values())):
                yield f"{path}: its documents got scores, but the manifest names no {name}"
            continue
        if not steps:
            yield f"{path} has scores, but no step gives any"
            continue
        try:
            table = read_scores(dataset.storage, report.file)
        except FineshardsError as error:
            yield str(error)
            continue
        assert table is not None
        for problem in _contradictions(table, steps, report):
            yield f"{name}: {problem}"


def _reached(report: FileReport, step: int) -> int:
    """How many documents of a file reached a step."""
    dropped = sum(each.documents for each in report.counts.dropped if each.step >= step)
    return report.counts.documents + dropped


def _contradictions(table: pa.Table, steps: dict[str, int], report: FileReport) -> Iterator[str]:
    if table.column_names != ["row", *steps]:
        yield f"its columns are {table.column_names}, expected {['row', *steps]}"
        return
    rows, last = table["row"].to_numpy(), report.counts.rows
    wrong = (rows < 0) | (rows >= last) | (np.diff(rows, prepend=-1) < 1)
    for index in np.flatnonzero(wrong)[:1].tolist():
        yield f"row {rows[index]} is not in order, or beyond the {counted(last, 'row')} of the file"
    expected = _reached(report, min(steps.values()))
    if len(rows) != expected:
        yield f"{counted(len(rows), 'document')} with scores, expected {expected:,}"
    for name, step in steps.items():
        scored, most = len(rows) - table[name].null_count, _reached(report, step)
        if scored > most:
            yield f"{counted(scored, 'document')} with a score {name}, expected {most:,} at most"
