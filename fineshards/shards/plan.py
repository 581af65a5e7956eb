"""The plan: from the token count of each block to the place of each token. Pure functions.

Offsets are prefix sums in two levels: over files, then over the blocks of a file. So no step needs
more than the blocks of one file, and one small array with one entry per file.
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
    """The layout, and the offset of each file in the stream.

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
    """The pieces that a file's blocks contribute to shards, from its summaries in order."""
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
