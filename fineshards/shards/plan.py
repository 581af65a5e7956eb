"""The plan: from how many tokens each block has to which tokens go where. Pure functions.

Offsets are a prefix sum in two levels, file totals and then blocks inside a file, so that no step
needs more than a file's blocks and one small array with an entry a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fineshards.shards.layout import Layout, ShardKey, SplitRule
from fineshards.shards.records import Piece
from fineshards.shards.reports import BlockSummary, FileReport


@dataclass(frozen=True)
class StreamPlan:
    """The layout, and where each file begins in the stream.

    token_offsets, document_offsets: int64, shape (files + 1,); the last entry is the total.
    """

    layout: Layout
    token_offsets: npt.NDArray[np.int64]
    document_offsets: npt.NDArray[np.int64]


def plan_stream(
    reports: Iterable[FileReport], files: int, shard_tokens: int, rule: SplitRule
) -> StreamPlan:
    """The plan of a stream of `files` files; a file without a report has no blocks."""
    tokens = np.zeros(files + 1, dtype=np.int64)
    documents = np.zeros(files + 1, dtype=np.int64)
    for report in reports:
        tokens[report.file + 1] = report.counts.tokens
        documents[report.file + 1] = report.counts.documents
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
        for cut in plan.layout.slices(token_offset, summary.counts.tokens):
            yield (
                cut.key,
                Piece(summary.file, summary.index, cut.start, cut.stop, cut.at, document),
            )
        token_offset += summary.counts.tokens
        document += summary.counts.documents
