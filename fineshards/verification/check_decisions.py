"""What a recipe decided and scored, and statistics: as many as the manifest says, and possible.

Part of verify, without sources or judging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.errors import FineshardsError
from fineshards.shards.counts import MANY_VALUES
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.curated_files import decisions_name, scores_name, statistics_name
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.job.source_counts import FileReport
from fineshards.shards.tables import statistics
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.documents import DocumentTable
from fineshards.shards.tables.scores import read_scores
from fineshards.verification.check_files import differences
from fineshards.wording import counted
from fineshards.worker.indexes import index_of

# Files whose dropped rows are kept where documents are in the order of the files.
_FILES_KEPT = 64
# What is wrong, row by row; and the sentence about the first such row, by its index.
_Check = tuple[npt.NDArray[np.bool_], Callable[[int], str]]


class DroppedRows:
    """Which rows the recipe of a dataset dropped, for the checks of its document tables."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
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
            bits, rows = self._bits(file), table.row[files == file]
            # Rows beyond the end of a file are another check's.
            rows = rows[rows < 8 * len(bits)]
            dropped = rows[(bits[rows >> 3] >> (rows & 7)) & 1 == 1]
            if len(dropped):
                yield (
                    f"{shard.name} holds row {dropped[0]} of "
                    f"{self._dataset.manifest.files[file].path}, which {decisions_name(file)} says "
                    f"is dropped; {counted(len(dropped), 'such document')}"
                )

    def _read(self, file: int) -> npt.NDArray[np.uint8]:
        bits = np.zeros(self._dataset.manifest.reports[file].counts.rows, np.bool_)
        dropped = read_decisions(self._dataset.storage, file).dropped_rows
        bits[dropped[(dropped >= 0) & (dropped < len(bits))]] = True
        return np.packbits(bits, bitorder="little")


def check_curated(dataset: Dataset) -> Iterator[str]:
    """Decisions, scores and statistics about each source file are possible, and as many as counted.

    Their files are whole.
    """
    manifest = dataset.manifest
    recipe, there = manifest.settings.recipe, {file.name for file in manifest.metadata}
    for report in manifest.reports:
        path, counts = manifest.files[report.file].path, report.counts
        scored = _reached(report, min(recipe.scores.values())) if recipe and recipe.scores else 0
        counted_blocks = report.blocks if manifest.settings.statistics else 0
        for name, check, least in (
            (decisions_name(report.file), _wrong_decisions, counts.documents_dropped),
            (scores_name(report.file), _wrong_scores, scored),
            (statistics_name(report.file), _wrong_statistics, counted_blocks),
        ):
            if name not in there:
                if least:
                    yield f"{path}: by its counts it has {name}, but the manifest does not name it"
                continue
            try:
                yield from (f"{name}: {problem}" for problem in check(dataset, recipe, report))
            except FineshardsError as error:
                yield str(error)


def _wrong_decisions(
    dataset: Dataset, recipe: RecipeRecord | None, report: FileReport
) -> Iterator[str]:
    """Rows are in the file, each is dropped once and by its last step, witnesses come earlier."""
    if recipe is None:
        yield "there is no recipe that decided"
        return
    table = read_decisions(dataset.storage, report.file).table
    rows, steps = table["row"].to_numpy(), table["step"].to_numpy()
    beyond = (steps < 0) | (steps >= len(recipe.steps))
    yield from _first(
        (
            (rows < 0) | (rows >= report.counts.rows),
            lambda at: f"row {rows[at]} is beyond the {report.counts.rows:,} rows of the file",
        ),
        (beyond, lambda at: f"row {rows[at]}: step {steps[at]} is not in the recipe"),
    )
    if beyond.any():
        return
    whole = table["span"].is_null().to_numpy()
    spans = np.where(whole, -1, pc.fill_null(table["span"], 0).to_numpy().astype(np.int64))
    same_row, same_step = rows[1:] == rows[:-1], steps[1:] == steps[:-1]
    # At one step a cut may empty a text, which drops the document: that decision has no span.
    ordered = (rows[1:] > rows[:-1]) | same_row & (
        (steps[1:] > steps[:-1]) | same_step & ((spans[1:] > spans[:-1]) | whole[1:])
    )
    has = table["witness_file"].is_valid().to_numpy()
    files = pc.fill_null(table["witness_file"], 0).to_numpy().astype(np.int64)
    places = pc.fill_null(table["witness_row"], 0).to_numpy()
    # A document of which nothing is left after a cut is dropped by the step without a witness.
    judged = rows << 15 | steps
    needs = np.isin(steps, recipe.keyed) & whole & ~np.isin(judged, judged[~whole]) | ~whole
    # A span may have its own document as its witness.
    same_file = files == report.file
    later = (files > report.file) | same_file & ((places > rows) | (places == rows) & whole)
    foreign = np.flatnonzero(has & (files < 0)).tolist()
    unknown = np.zeros(len(rows), np.bool_)
    unknown[[n for n in foreign if index_of(recipe, int(steps[n]), int(-1 - files[n])) is None]] = (
        True
    )
    of_files = np.array([each.counts.rows for each in dataset.manifest.reports], np.int64)
    inside = has & ~later & (files >= 0)
    outside = inside & ((places < 0) | (places >= of_files[np.where(inside, files, 0)]))
    yield from _first(
        (~ordered, lambda at: f"row {rows[at + 1]} is not in order, or has a decision twice"),
        (
            same_row & whole[:-1],
            lambda at: f"row {rows[at]} is dropped, and judged by a later step or dropped again",
        ),
        (
            needs & ~has,
            lambda at: f"row {rows[at]}: there is no witness of an earlier document with its key",
        ),
        (
            has & later,
            lambda at: (
                f"row {rows[at]}: its witness, row {places[at]} of file {files[at]}, is not earlier"
            ),
        ),
        (
            unknown,
            lambda at: (
                f"row {rows[at]}: step {recipe.step_name(int(steps[at]))} has no index "
                f"{-1 - files[at]}"
            ),
        ),
        (
            outside,
            lambda at: f"row {rows[at]}: its witness, row {places[at]}, is not in file {files[at]}",
        ),
    )
    dropped = table.filter(pa.array(whole)).group_by(["step", "reason"], use_threads=False)
    yield from _other_drops(
        recipe,
        report,
        {
            (each["step"], each["reason"]): each["row_count"]
            for each in dropped.aggregate([("row", "count")]).to_pylist()
        },
    )


def _first(*checks: _Check) -> Iterator[str]:
    """The first thing of each kind that is wrong."""
    for wrong, sentence in checks:
        yield from map(sentence, np.flatnonzero(wrong)[:1].tolist())


def _other_drops(
    recipe: RecipeRecord | None, report: FileReport, dropped: dict[tuple[int, str], int]
) -> Iterator[str]:
    """As many documents are dropped, by step and reason, as the manifest says."""
    many = {each.step for each in report.counts.dropped if each.reason == MANY_VALUES}

    def what(step: int, reason: str) -> str:
        name = recipe.step_name(step) if recipe else step + 1
        return f"documents dropped by step {name} ({MANY_VALUES if step in many else reason})"

    found = Counter[str]()
    for place, documents in sorted(dropped.items()):
        found[what(*place)] += documents
    listed = report.counts.dropped
    yield from differences(found, {what(each.step, each.reason): each.documents for each in listed})


def _wrong_scores(
    dataset: Dataset, recipe: RecipeRecord | None, report: FileReport
) -> Iterator[str]:
    """The scores are those of the recipe, of the documents that got some."""
    table, steps = read_scores(dataset.storage, report.file), recipe.scores if recipe else {}
    assert table is not None
    if not steps or table.column_names != ["row", *steps]:
        yield f"its columns are {table.column_names}, expected {['row', *steps]}"
        return
    rows, last = table["row"].to_numpy(), report.counts.rows
    yield from _first(
        (
            (rows < 0) | (rows >= last) | (np.diff(rows, prepend=-1) < 1),
            lambda at: f"row {rows[at]} is not in order, or beyond the {last:,} rows of the file",
        )
    )
    reached = _reached(report, min(steps.values()))
    what = "documents with scores"
    yield from differences({what: len(rows)}, {what: reached})
    for name, step in steps.items():
        scored, most = len(rows) - table[name].null_count, _reached(report, step)
        if scored > most:
            yield f"{counted(scored, 'document')} with a score {name}, expected {most:,} at most"


def _reached(report: FileReport, step: int) -> int:
    """How many documents of a file reached a step."""
    dropped = sum(each.documents for each in report.counts.dropped if each.step >= step)
    return report.counts.documents + dropped


def _wrong_statistics(
    dataset: Dataset, recipe: RecipeRecord | None, report: FileReport
) -> Iterator[str]:
    """The statistics count what the manifest does."""
    table, counts = statistics.read_file(dataset.storage, report.file), report.counts
    of_dataset = table.filter(pc.equal(table["what"], "dataset"))
    names = ("documents", "bytes", "tokens")
    expected = {"documents": counts.documents, "bytes": counts.text_bytes, "tokens": counts.tokens}
    yield from differences(
        {name: pc.sum(of_dataset[name]).as_py() or 0 for name in names}, expected
    )
    rows = table.filter(pc.equal(table["what"], "dropped")).to_pylist()
    dropped = {(row["step"], row["value"]): row["documents"] for row in rows}
    yield from _other_drops(recipe, report, dropped)
