"""The plan: from the token count of each block to the place of each token. Pure functions.

Offsets are prefix sums in two levels: over files, then over the blocks of a file. So no step needs
more than the blocks of one file, and one small array with one entry per file. A place is known as
soon as all blocks before it are counted (`Places`), whatever comes after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from fineshards.errors import InputError
from fineshards.shards.counts import BlockSummary, FileReport, Sums, sums_by_stream
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Block, Piece, TokenBlock
from fineshards.shards.layout import Layout, ShardKey
from fineshards.shards.split_rule import SplitRule
from fineshards.storage.base import Storage


@dataclass(frozen=True, slots=True)
class EarlierGeneration:
    """What a dataset holds already when a job adds to it. Made once, at launch.

    generation: its number; 0 of a new dataset, which holds nothing. sums: of each stream. added: as
    in its Layout.
    """

    generation: int = 0
    sums: tuple[Sums, ...] = ()
    added: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> EarlierGeneration:
        """What a generation of a dataset holds."""
        sums = sums_by_stream(manifest.reports, manifest.settings.split)
        return cls(manifest.generation, sums, manifest.layout.added)

    def __bool__(self) -> bool:
        return self.generation > 0

    def manifest(self, storage: Storage) -> Manifest:
        """The rest of what it holds, which is too large to be sent to each worker."""
        return Manifest.load_finished(storage, self.generation)

    def held(self, rule: SplitRule) -> tuple[Sums, ...]:
        """What each stream holds."""
        return self.sums or (Sums(0, 0),) * len(rule.streams)


NO_EARLIER = EarlierGeneration()


@dataclass(frozen=True)
class StreamPlan:
    """The layout, and where each file's part of each stream begins.

    token_offsets: in global order; document_offsets: in the stream. int64, shape (streams, files).
    """

    layout: Layout
    rule: SplitRule
    token_offsets: npt.NDArray[np.int64]
    document_offsets: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        layout: Layout,
        rule: SplitRule,
        reports: Sequence[FileReport],
        earlier: EarlierGeneration = NO_EARLIER,
    ) -> StreamPlan:
        """Where files with these reports begin in a layout, which may have more after them."""
        held, files = earlier.held(rule), 1 + max((report.file for report in reports), default=-1)
        tokens = np.zeros((len(rule.streams), files), dtype=np.int64)
        documents = np.zeros_like(tokens)
        for report in reports:
            sums = report.streams()
            tokens[:, report.file] = [one.tokens for one in sums]
            documents[:, report.file] = [one.documents for one in sums]
        begins = [
            start + sums.tokens
            for start, sums in zip((0, layout.tokens_of("test")), held, strict=False)
        ]
        firsts = [sums.documents for sums in held]
        offsets = (
            np.cumsum(counts, axis=1) - counts + np.array(begin)[:, None]
            for counts, begin in ((tokens, begins), (documents, firsts))
        )
        return cls(layout, rule, *offsets)


def plan_stream(
    reports: Sequence[FileReport],
    shard_tokens: int,
    rule: SplitRule,
    earlier: EarlierGeneration = NO_EARLIER,
) -> StreamPlan:
    """The plan of a dataset whose files have these reports.

    earlier: what it held before these files. Raises InputError if the dataset grows beyond the
    shards that its names have digits for.
    """
    new = [sums.tokens for sums in sums_by_stream(reports, rule)]
    layout = Layout.plan(new, shard_tokens, rule, earlier.added)
    width = Layout(shard_tokens, earlier.added).index_width if earlier else layout.index_width
    if layout.index_width != width:
        raise InputError(
            f"the dataset would have {layout.windows:,} shards, and its names have {width} digits, "
            "so readers that sort them would read them in another order. Build a dataset of all "
            "files with larger --shard_tokens."
        )
    return StreamPlan.of(layout, rule, reports, earlier)


def plan_pieces(
    summaries: list[BlockSummary], plan: StreamPlan, folder: str = "blocks"
) -> Iterator[tuple[ShardKey, Piece]]:
    """The pieces of a file's token blocks, in a folder, from its summaries in order."""
    file = summaries[0].file
    tokens, documents = (
        offsets[:, file].tolist() for offsets in (plan.token_offsets, plan.document_offsets)
    )
    for summary in summaries:
        block = TokenBlock(folder, summary.file, summary.index)
        for number, (stream, sums) in enumerate(
            zip(plan.rule.streams, summary.streams(), strict=True)
        ):
            for at in plan.layout.slices(tokens[number], sums.tokens):
                yield at.key, Piece(block, stream, at.start, at.stop, at.at, documents[number])
            tokens[number] += sums.tokens
            documents[number] += sums.documents


def pieces_of_shards(
    files: Iterable[list[BlockSummary]],
    plan: StreamPlan,
    wanted: Container[ShardKey],
    folder: str = "blocks",
) -> Iterator[tuple[ShardKey, Piece]]:
    """The pieces of some shards. files: the summaries of all blocks of each file."""
    pieces = (plan_pieces(summaries, plan, folder) for summaries in files if summaries)
    return ((key, piece) for key, piece in chain.from_iterable(pieces) if key in wanted)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts of a block begin: offsets in the global order of a layout, one per stream.

    The layout ends with the block.
    """

    block: TokenBlock
    layout: Layout
    offsets: tuple[int, ...]


class Places:
    """Turns block summaries, in any order, into places."""

    def __init__(
        self, shard_tokens: int, rule: SplitRule, earlier: EarlierGeneration = NO_EARLIER
    ) -> None:
        self._next = deque[TokenBlock]()
        self._arrived: dict[TokenBlock, BlockSummary] = {}
        self._shard_tokens = shard_tokens
        self._rule = rule
        self._earlier = earlier
        self._tokens = [0] * len(rule.streams)

    def expect(self, blocks: Iterable[Block]) -> None:
        """Takes the blocks that come next in the input, in order."""
        self._next.extend(block.place for block in blocks)

    def add(self, summary: BlockSummary) -> Iterator[Place]:
        """Takes the summary of a block; yields the places that are known now, each once."""
        self._arrived[summary.place] = summary
        while self._next and self._next[0] in self._arrived:
            block = self._next.popleft()
            yield self._place(block, self._arrived.pop(block))

    def _place(self, block: TokenBlock, summary: BlockSummary) -> Place:
        before = self._tokens
        added = [sums.tokens for sums in summary.streams()]
        self._tokens = after = [old + new for old, new in zip(before, added, strict=True)]
        held = [sums.tokens for sums in self._earlier.held(self._rule)]
        layout = Layout.plan(after, self._shard_tokens, self._rule, self._earlier.added)
        ends = [old + new for old, new in zip(held, after, strict=True)]
        offsets = (sum(ends[: n + 1]) - new for n, new in enumerate(added))
        return Place(block, layout, tuple(offsets))
