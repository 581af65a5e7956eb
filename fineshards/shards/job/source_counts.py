"""Counts per block and per source file, and checks that none are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fineshards.errors import FineshardsError, InputError
from fineshards.shards.counts import Counts, Sums
from fineshards.shards.job.records import SourceFile
from fineshards.shards.layout import SplitRule
from fineshards.shards.record import Count, Record
from fineshards.shards.tables.rejected_rows import REJECTED_FOLDER, check_total


class SortedRun(Record, frozen=True):
    """A part of a token block whose documents are in the order of their keys, cut into cells.

    All keys of a cell have the same leading bits; there are 2^n cells. Cell i is tokens
    `[tokens[i], tokens[i + 1])` of the block's tokens, and bytes `[documents[i], documents[i + 1])`
    of its file of documents (`fineshards/shards/sorted_runs.py`).
    """

    stream: str
    tokens: tuple[Count, ...]
    documents: tuple[Count, ...]


class BlockSummary(Record, frozen=True):
    """The counts of block `index`, one of the `blocks` blocks of source file `file`.

    test: what went to the test split, where the split is by document; otherwise None. runs: the
    sorted parts of the token block, if documents are shuffled.
    """

    file: Count
    index: Count
    blocks: Count
    counts: Counts
    test: Sums | None = None
    runs: tuple[SortedRun, ...] = ()

    def streams(self) -> tuple[Sums, ...]:
        """What went to each stream, in the order of SplitRule.streams."""
        return _streams(self.counts, self.test)


class FileReport(Record, frozen=True):
    """The counts of a source file.

    Args:
        file: Index of the source file.
        blocks: Number of its blocks.
        counts: Sum of the blocks' counts.
        test: What went to the test split, where the split is by document; otherwise None.
    """

    file: Count
    blocks: Count
    counts: Counts
    test: Sums | None = None

    def streams(self) -> tuple[Sums, ...]:
        """What went to each stream, in the order of SplitRule.streams."""
        return _streams(self.counts, self.test)


def _streams(counts: Counts, test: Sums | None) -> tuple[Sums, ...]:
    if test is None:
        return (Sums(counts.documents, counts.tokens),)
    return (test, Sums(counts.documents - test.documents, counts.tokens - test.tokens))


def sums_by_stream(
    reports: Iterable[FileReport | BlockSummary], rule: SplitRule
) -> tuple[Sums, ...]:
    """What went to each stream from all of some files, or blocks."""
    streams = zip(*(report.streams() for report in reports), strict=True)
    sums = tuple(
        Sums(sum(s.documents for s in each), sum(s.tokens for s in each)) for each in streams
    )
    return sums or (Sums(0, 0),) * len(rule.streams)


def complete_file(summaries: Iterable[BlockSummary]) -> list[BlockSummary]:
    """A file's summaries in order; raises FineshardsError unless each block occurs once."""
    ordered = sorted(summaries, key=lambda summary: summary.index)
    found = [summary.index for summary in ordered]
    if found != list(range(ordered[0].blocks)):
        raise FineshardsError(
            f"file {ordered[0].file}: got blocks {found}, expected 0 to {ordered[0].blocks - 1} "
            "once each. This is a bug in the runner or in fineshards; please report it."
        )
    return ordered


def report_file(summaries: list[BlockSummary]) -> FileReport:
    """The sum of a file's summaries; raises FineshardsError if its rows do not balance."""
    counts = Counts.total(summary.counts for summary in summaries)
    file = summaries[0].file
    if not counts.balances():
        raise FineshardsError(
            f"file {file} does not balance: {counts.imbalance()}. This is a bug in fineshards; "
            "please report it."
        )
    in_test = [summary.test for summary in summaries if summary.test is not None]
    test = Sums(sum(one.documents for one in in_test), sum(one.tokens for one in in_test))
    return FileReport(file, len(summaries), counts, test if in_test else None)


def check_masks(reports: Iterable[FileReport], files: Sequence[SourceFile]) -> None:
    """Raises InputError for a file of conversations of which all tokens are learned, or none.

    Of a document the EOT in front of it is never learned.
    """
    for report in reports:
        counts = report.counts
        most = counts.tokens - counts.documents
        if not counts.documents or 0 < counts.learned < most:
            continue
        found = "none" if counts.learned == 0 else "all"
        raise InputError(
            f"{files[report.file].path}: {found} of the {most:,} tokens of its "
            f"{counts.documents:,} conversations would be learned. Check --learn, and the roles "
            "in the file; --allow_constant_mask takes it as it is."
        )


def check_reports(
    reports: Iterable[FileReport], max_bad_rows: int | str, must_have_documents: bool = True
) -> None:
    """Raises InputError if there are no documents, or more rejected rows than allowed."""
    reports = list(reports)
    sums = Counts.sum_numbers(report.counts for report in reports)
    check_total(sums["rejected"], max_bad_rows, sums["rows"])
    dropped = sum(report.counts.documents_dropped for report in reports)
    pages = sum(report.counts.pages_unextracted for report in reports)
    if must_have_documents and pages and not (dropped or sums["documents"]):
        raise InputError(
            f"the input has no documents: {sums['rows']:,} rows, and of {pages:,} pages the text "
            f"cannot be extracted. {REJECTED_FOLDER}/ lists them with the reasons."
        )
    if must_have_documents and dropped and not sums["documents"]:
        by = Counter[tuple[int, str]]()
        for each in (each for report in reports for each in report.counts.dropped):
            by[each.step + 1, each.reason] += each.documents
        most = ", ".join(f"{n:,} by step {step} ({why})" for (step, why), n in by.most_common(3))
        raise InputError(
            f"the recipe leaves no documents: {sums['rows']:,} rows, {dropped:,} of them dropped: "
            f"{most}. Loosen these steps, or check --input."
        )
    if must_have_documents and not sums["documents"]:
        raise InputError(
            f"the input has no documents: {sums['rows']} rows, none with text. Check --input, and "
            "--text_column or --text_template."
        )
