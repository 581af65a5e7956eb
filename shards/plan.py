"""The plan: from how many tokens each block has to which tokens go where. Pure functions.

Offsets are a prefix sum in two levels, file totals and then blocks inside a file, so that no step
needs more than a file's blocks and one small array with an entry a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shards.errors import FineshardsError
from shards.layout import Layout, ShardKey, SplitRule
from shards.records import BlockSummary, FileReport, LabelCount, Piece


@dataclass(frozen=True)
class StreamPlan:
    """The layout, and where each file begins in the stream.

    token_offsets, document_offsets: int64, shape (files + 1,); the last entry is the total.
    """

    layout: Layout
    token_offsets: npt.NDArray[np.int64]
    document_offsets: npt.NDArray[np.int64]


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
    report = FileReport(
        file=summaries[0].file,
        blocks=len(summaries),
        rows=sum(summary.rows for summary in summaries),
        documents=sum(summary.documents for summary in summaries),
        nulls=sum(summary.nulls for summary in summaries),
        rejected=sum(summary.rejected for summary in summaries),
        tokens=sum(summary.tokens for summary in summaries),
        text_bytes=sum(summary.text_bytes for summary in summaries),
        by_reference=sum(summary.by_reference for summary in summaries),
        compared=sum(summary.compared for summary in summaries),
        labels=sum_labels(label for summary in summaries for label in summary.labels),
    )
    if report.rows != report.documents + report.nulls + report.rejected:
        raise FineshardsError(
            f"file {report.file} does not balance: {report.rows} rows, but {report.documents} "
            f"documents, {report.nulls} null and {report.rejected} rejected. Please report it."
        )
    return report


def sum_labels(labels: Iterable[LabelCount]) -> tuple[LabelCount, ...]:
    """One count for each column and value, sorted by both."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for label in labels:
        entry = sums[label.column, label.value]
        entry[0] += label.documents
        entry[1] += label.tokens
    return tuple(LabelCount(*key, *sums[key]) for key in sorted(sums))


def plan_stream(
    reports: Iterable[FileReport], files: int, shard_tokens: int, rule: SplitRule
) -> StreamPlan:
    """The plan of a stream of `files` files; a file without a report has no blocks."""
    tokens = np.zeros(files + 1, dtype=np.int64)
    documents = np.zeros(files + 1, dtype=np.int64)
    for report in reports:
        tokens[report.file + 1] = report.tokens
        documents[report.file + 1] = report.documents
    token_offsets, document_offsets = np.cumsum(tokens), np.cumsum(documents)
    layout = Layout.plan(int(token_offsets[-1]), shard_tokens, rule)
    return StreamPlan(layout, token_offsets, document_offsets)


def plan_pieces(
    summaries: list[BlockSummary], plan: StreamPlan
) -> Iterator[tuple[ShardKey, Piece]]:
    """The pieces of shards that a file's blocks give, from its summaries in order."""
    token_offset = int(plan.token_offsets[summaries[0].file])
    document = int(plan.document_offsets[summaries[0].file])
    for summary in summaries:
        for cut in plan.layout.slices(token_offset, summary.tokens):
            yield (
                cut.key,
                Piece(summary.file, summary.index, cut.start, cut.stop, cut.at, document),
            )
        token_offset += summary.tokens
        document += summary.documents
