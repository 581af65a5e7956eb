"""The plan: from the token count of each block to the place of each token. Pure functions.

Offsets are prefix sums in two levels: over files, then over the blocks of a file. So no step needs
more than the blocks of one file, and one small array with one entry per file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fineshards.shards.layout import Layout, ShardKey, SplitRule
from fineshards.shards.records import Piece, TokenBlock
from fineshards.shards.reports import BlockSummary, FileReport


@dataclass(frozen=True)
class StreamPlan:
    """The layout, and where each file's part of each stream begins.

    token_offsets: in global order; document_offsets: in the stream. int64, shape (streams, files).
    """

    layout: Layout
    rule: SplitRule
    token_offsets: npt.NDArray[np.int64]
    document_offsets: npt.NDArray[np.int64]


def sums_by_file(
    reports: Sequence[FileReport], rule: SplitRule
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tokens and documents of each file's part of each stream, int64, shape (streams, files).

    A file without a report has none.
    """
    files = 1 + max((report.file for report in reports), default=-1)
    tokens = np.zeros((len(rule.streams), files), dtype=np.int64)
    documents = np.zeros_like(tokens)
    for report in reports:
        sums = report.streams()
        tokens[:, report.file] = [one.tokens for one in sums]
        documents[:, report.file] = [one.documents for one in sums]
    return tokens, documents


def plan_stream(reports: Sequence[FileReport], shard_tokens: int, rule: SplitRule) -> StreamPlan:
    """The plan of a dataset whose files have these reports."""
    tokens, documents = sums_by_file(reports, rule)
    layout = Layout.plan(tokens.sum(axis=1).tolist(), shard_tokens, rule)
    in_stream = np.cumsum(documents, axis=1) - documents
    return StreamPlan(layout, rule, exclusive_sums(tokens), in_stream)


def exclusive_sums(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of all counts before each one, row by row."""
    return np.cumsum(counts).reshape(counts.shape) - counts


def plan_pieces(
    summaries: list[BlockSummary], plan: StreamPlan, folder: str = "blocks"
) -> Iterator[tuple[ShardKey, Piece]]:
    """The pieces that a file's blocks contribute to shards, from its summaries in order.

    folder: that of their token blocks.
    """
    file = summaries[0].file
    tokens, documents = (
        offsets[:, file].tolist() for offsets in (plan.token_offsets, plan.document_offsets)
    )
    for summary in summaries:
        for number, (stream, sums) in enumerate(
            zip(plan.rule.streams, summary.streams(), strict=True)
        ):
            for cut in plan.layout.slices(tokens[number], sums.tokens):
                yield (
                    cut.key,
                    Piece(
                        TokenBlock(folder, summary.file, summary.index),
                        stream,
                        cut.start,
                        cut.stop,
                        cut.at,
                        documents[number],
                    ),
                )
            tokens[number] += sums.tokens
            documents[number] += sums.documents
