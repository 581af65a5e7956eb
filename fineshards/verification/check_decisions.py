"""Checks of what a recipe decided and scored, as part of verify: without sources or judging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.errors import FineshardsError
from fineshards.shards.counts import MANY_VALUES
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.curated_files import decisions_name, scores_name
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.tables.decisions import Decisions, read_decisions
from fineshards.shards.tables.documents import DocumentTable
from fineshards.shards.tables.scores import read_scores
from fineshards.wording import counted
from fineshards.worker.indexes import index_of

# Files whose dropped rows are kept where documents are in the order of the files.
_FILES_KEPT = 64


class DroppedRows:
    """Which rows the recipe of a dataset dropped, for the checks of its document tables."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._there = {file.name for file in dataset.manifest.metadata}
        # Each shard of a shuffled dataset has rows of all files. A bit per row: 3 GB for FineWeb.
        kept = None if dataset.manifest.settings.shuffle else _FILES_KEPT
        self._bits = lru_cache(kept)(self._read)

    def among(
        self, shard: ShardRecord, table: DocumentTable, files: npt.NDArray[np.int64]
    ) -> Iterator[str]:
        """A sentence for the first document of a table that the recipe dropped.

        files: the number of each document's source file.
        """
        for file in np.unique(files[files >= 0]).tolist():
            bits = self._bits(file)
            if bits is None:
                continue
            rows = table.row[files == file]
            # Rows beyond the end of a file are another check's.
            rows = rows[rows < 8 * len(bits)]
            dropped = rows[(bits[rows >> 3] >> (rows & 7)) & 1 == 1]
            if len(dropped):
                yield (
                    f"{shard.name} holds row {dropped[0]} of "
                    f"{self._dataset.manifest.files[file].path}, which {decisions_name(file)} says "
                    f"is dropped; {counted(len(dropped), 'such document')}"
                )

    def _read(self, file: int) -> npt.NDArray[np.uint8] | None:
        if decisions_name(file) not in self._there:
            return None
        rows = self._dataset.manifest.reports[file].counts.rows
        bits = np.zeros(rows, np.bool_)
        try:
            dropped = read_decisions(self._dataset.storage, file).dropped_rows
        except FineshardsError:
            return None  # reported by check_decisions
        bits[dropped[(dropped >= 0) & (dropped < rows)]] = True
        return np.packbits(bits, bitorder="little")


def check_decisions(dataset: Dataset) -> Iterator[str]:
    """The decisions about each source file can be those of the recipe, and are as many as counted.

    Rows are in the file, each is dropped once and by its last step, keyed steps have witnesses that
    come earlier, and the counts by step and reason are those of the manifest.
    """
    manifest = dataset.manifest
    there = {file.name for file in manifest.metadata}
    for report in manifest.reports:
        name = decisions_name(report.file)
        if manifest.settings.recipe is None:
            if name in there or report.counts.dropped:
                yield f"{manifest.files[report.file].path} has decisions, but there is no recipe"
            continue
        if name not in there:
            if report.counts.dropped:
                yield (
                    f"{manifest.files[report.file].path}: the manifest says "
                    f"{counted(report.counts.documents_dropped, 'document')} dropped, but names no "
                    f"{name}"
                )
            continue
        try:
            decisions = read_decisions(dataset.storage, report.file)
        except FineshardsError as error:
            yield str(error)
            continue
        for problem in _contradictions(dataset, report, decisions):
            yield f"{name}: {problem}"


def _contradictions(dataset: Dataset, report: FileReport, decisions: Decisions) -> Iterator[str]:
    recipe = dataset.manifest.settings.recipe
    assert recipe is not None
    table = decisions.table
    rows, steps = table["row"].to_numpy(), table["step"].to_numpy()
    for index in _first((rows < 0) | (rows >= report.counts.rows)):
        yield f"row {rows[index]} is beyond the {counted(report.counts.rows, 'row')} of the file"
    beyond = (steps < 0) | (steps >= len(recipe.steps))
    for index in _first(beyond):
        yield f"row {rows[index]}: step {steps[index]} is not in the recipe"
    if beyond.any():
        return
    whole = table["span"].is_null().to_numpy()
    yield from _order(rows, steps, table["span"], whole)
    yield from _witnesses(dataset, report, table, np.isin(steps, recipe.keyed) & whole)
    yield from _counts(dataset, report, table.filter(pa.array(whole)))


def _first(wrong: npt.NDArray[np.bool_]) -> list[int]:
    """The first index where something is wrong, if there is any."""
    found: list[int] = np.flatnonzero(wrong)[:1].tolist()
    return found


def _order(
    rows: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int16],
    spans: pa.ChunkedArray,
    whole: npt.NDArray[np.bool_],
) -> Iterator[str]:
    """Rows ascend; a row is dropped once, and no step follows."""
    numbers = np.where(whole, -1, pc.fill_null(spans, 0).to_numpy().astype(np.int64))
    same_row, same_step = rows[1:] == rows[:-1], steps[1:] == steps[:-1]
    # At one step a cut may empty a text, which drops the document: that decision has no span.
    sorted_ = (rows[1:] > rows[:-1]) | same_row & (
        (steps[1:] > steps[:-1]) | same_step & ((numbers[1:] > numbers[:-1]) | whole[1:])
    )
    for index in _first(~sorted_):
        yield f"row {rows[index + 1]} is not in order, or has a decision twice"
    for index in _first(same_row & whole[:-1]):
        yield f"row {rows[index]} is dropped, and judged by a later step or dropped again"


def _witnesses(
    dataset: Dataset, report: FileReport, table: pa.Table, keyed: npt.NDArray[np.bool_]
) -> Iterator[str]:
    """Witnesses are there, and come earlier. A span may have its own document as its witness."""
    rows = table["row"].to_numpy()
    has = table["witness_file"].is_valid().to_numpy()
    files = pc.fill_null(table["witness_file"], 0).to_numpy().astype(np.int64)
    at = pc.fill_null(table["witness_row"], 0).to_numpy()
    cut = table["span"].is_valid().to_numpy()
    # A document of which nothing is left after a cut is dropped by the step without a witness.
    judged = rows << 15 | table["step"].to_numpy()
    emptied = np.isin(judged, judged[cut])
    for index in _first((keyed & ~emptied | cut) & ~has):
        yield f"row {rows[index]}: there is no witness of an earlier document with its key"
    later = (files > report.file) | (files == report.file) & ((at > rows) | (at == rows) & ~cut)
    for index in _first(has & later):
        yield (
            f"row {rows[index]}: its witness, row {at[index]} of file {files[index]}, is not "
            "earlier"
        )
    recipe = dataset.manifest.settings.recipe
    assert recipe is not None
    steps = table["step"].to_numpy()
    for index in np.flatnonzero(has & (files < 0)).tolist():
        if index_of(recipe, int(steps[index]), -1 - int(files[index])) is None:
            name = recipe.step_name(int(steps[index]))
            yield f"row {rows[index]}: step {name} has no index {-1 - files[index]}"
            break
    of_files = np.array([each.counts.rows for each in dataset.manifest.reports], np.int64)
    inside = has & ~later & (files >= 0)
    for index in _first(inside & ((at < 0) | (at >= of_files[np.where(inside, files, 0)]))):
        yield f"row {rows[index]}: its witness, row {at[index]}, is not in file {files[index]}"


def _counts(dataset: Dataset, report: FileReport, dropped: pa.Table) -> Iterator[str]:
    """As many documents are dropped, by step and reason, as the manifest says."""
    recipe = dataset.manifest.settings.recipe
    assert recipe is not None
    grouped = dropped.group_by(["step", "reason"], use_threads=False).aggregate([("row", "count")])
    found = Counter[tuple[int, str]]()
    said = {(each.step, each.reason): each.documents for each in report.counts.dropped}
    for each in grouped.to_pylist():
        step, reason = each["step"], each["reason"]
        found[step, MANY_VALUES if (step, MANY_VALUES) in said else reason] += each["row_count"]
    for step, reason in sorted(said.keys() | found.keys()):
        if found[step, reason] != said.get((step, reason), 0):
            yield (
                f"{counted(found[step, reason], 'document')} dropped by step "
                f"{recipe.step_name(step)} ({reason}); the manifest says "
                f"{said.get((step, reason), 0):,}"
            )


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
        for problem in _score_contradictions(table, steps, report):
            yield f"{name}: {problem}"


def _reached(report: FileReport, step: int) -> int:
    """How many documents of a file reached a step."""
    dropped = sum(each.documents for each in report.counts.dropped if each.step >= step)
    return report.counts.documents + dropped


def _score_contradictions(
    table: pa.Table, steps: dict[str, int], report: FileReport
) -> Iterator[str]:
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
