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
    """The layout, and the offset of each file's part of each stream in global order.

    token_offsets, document_offsets: int64, shape (streams, files).
    """

    layout: Layout
    rule: SplitRule
    token_offsets: npt.NDArray[np.int64]
    document_offsets: npt.NDArray[np.int64]


def plan_stream(
    reports: Iterable[FileReport], files: int, shard_tokens: int, rule: SplitRule
) -> StreamPlan:
    """The plan of a dataset of `files` files; a file without a report has no blocks."""
    tokens = np.zeros((len(rule.streams), files), dtype=np.int64)
    documents = np.zeros_like(tokens)
    for report in reports:
        sums = report.streams()
        tokens[:, report.file] = [one.tokens for one in sums]
        documents[:, report.file] = [one.documents for one in sums]
    layout = Layout.plan(tokens.sum(axis=1).tolist(), shard_tokens, rule)
    return StreamPlan(layout, rule, exclusive_sums(tokens), exclusive_sums(documents))


def exclusive_sums(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum of all counts before each one, row by row."""
    return np.cumsum(counts).reshape(counts.shape) - counts


def plan_pieces(
    summaries: list[BlockSummary], plan: StreamPlan
) -> Iterator[tuple[ShardKey, Piece]]:
    """The pieces that a file's blocks contribute to shards, from its summaries in order."""
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
                        summary.file,
                        summary.index,
                        stream,
                        cut.start,
                        cut.stop,
                        cut.at,
                        documents[number],
                    ),
                )
            tokens[number] += sums.tokens
            documents[number] += sums.documents
