"""What was made of blocks and files: counts with the place that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fineshards.errors import FineshardsError, InputError
from fineshards.shards.counts import Counts
from fineshards.shards.rejected import check_total


@dataclass(frozen=True, slots=True)
class BlockSummary:
    """What became of block `index` of the `blocks` blocks of source file `file`."""

    file: int
    index: int
    blocks: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class FileReport:
    """The sum of the summaries of a source file's `blocks` blocks."""

    file: int
    blocks: int
    counts: Counts


def complete_file(summaries: Iterable[BlockSummary]) -> list[BlockSummary]:
    """A file's summaries in order; raises FineshardsError unless each block is there once."""
    ordered = sorted(summaries, key=lambda summary: summary.index)
    found = [summary.index for summary in ordered]
    if found != list(range(ordered[0].blocks)):
        raise FineshardsError(
            f"file {ordered[0].file}: got blocks {found}, expected 0 to {ordered[0].blocks - 1} "
            "once each. This is a fault of the runner or of fineshards: please report it."
        )
    return ordered


def report_file(summaries: list[BlockSummary]) -> FileReport:
    """The sum of a file's summaries; raises FineshardsError if its rows do not balance."""
    counts = Counts.total(summary.counts for summary in summaries)
    file = summaries[0].file
    if not counts.balances():
        raise FineshardsError(
            f"file {file} does not balance: {counts.imbalance()}. Please report it."
        )
    return FileReport(file, len(summaries), counts)


def check_reports(reports: Iterable[FileReport], max_bad_rows: int) -> None:
    """Raises InputError if there is no document, or more rejected rows than allowed in all."""
    counts = Counts.total(report.counts for report in reports)
    check_total(counts.rejected, max_bad_rows)
    if not counts.documents:
        raise InputError(
            f"the input has no documents: {counts.rows} rows, none with text. Check --input and "
            "--text_column."
        )
