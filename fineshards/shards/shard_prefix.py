"""The shards that are complete when the first blocks of the input are tokenized. Pure functions.

A window of a stream is complete when all tokens before its end are counted, whatever comes after.
So its shard can be written long before the plan is made, which finds the same pieces.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence

from fineshards.shards.counts import Sums
from fineshards.shards.job.records import Block, Piece, TokenBlock
from fineshards.shards.job.source_counts import BlockSummary
from fineshards.shards.layout import Layout, Shard, ShardKey, SplitRule, shard_name
from fineshards.shards.piece_plan import NO_EARLIER, EarlierGeneration, pieces_of


class ShardPrefix:
    """Turns block summaries, in any order, into the shards that they complete.

    blocks: of the whole input, in order. earlier: what the dataset holds already. width: digits of
    the names, if they are known: if there are more shards, Plan renames the first ones.
    """

    def __init__(
        self,
        blocks: Iterable[Block],
        shard_tokens: int,
        rule: SplitRule,
        earlier: EarlierGeneration = NO_EARLIER,
        width: int | None = None,
    ) -> None:
        self._next = deque(block.place for block in blocks)
        self._arrived: dict[TokenBlock, BlockSummary] = {}
        self._shard_tokens = shard_tokens
        self._rule = rule
        self._earlier = earlier
        self._sums = list(earlier.held(rule))
        self._pieces: dict[ShardKey, list[Piece]] = defaultdict(list)
        self._width = width or self._layout([sums.tokens for sums in self._sums]).index_width
        # Tokens of each part of a block that are not in finished shards, and which are finished.
        self._unwritten: dict[tuple[TokenBlock, str], int] = {}
        self._finished: set[ShardKey] = set()

    def _layout(self, tokens: Sequence[int]) -> Layout:
        held = self._earlier.held(self._rule)
        new = [count - sums.tokens for count, sums in zip(tokens, held, strict=True)]
        return Layout.plan(new, self._shard_tokens, self._rule, self._earlier.added)

    def add(self, summary: BlockSummary) -> list[tuple[Shard, tuple[Piece, ...]]]:
        """Takes the summary of a block; returns the shards that are complete now, each once."""
        self._arrived[TokenBlock("blocks", summary.file, summary.index)] = summary
        complete: list[tuple[Shard, tuple[Piece, ...]]] = []
        while self._next and self._next[0] in self._arrived:
            place = self._next.popleft()
            complete += self._append(place, self._arrived.pop(place))
        return complete

    def _append(
        self, place: TokenBlock, summary: BlockSummary
    ) -> Iterator[tuple[Shard, tuple[Piece, ...]]]:
        added = summary.streams()
        before = [sums.tokens for sums in self._sums]
        after = [old + new.tokens for old, new in zip(before, added, strict=True)]
        layout = self._layout(after)
        for number, (stream, new) in enumerate(zip(self._rule.streams, added, strict=True)):
            offset = sum(after[:number]) + before[number]
            documents = self._sums[number].documents
            self._unwritten[place, stream] = new.tokens
            for key, piece in pieces_of(place, stream, new.tokens, layout, offset, documents):
                self._pieces[key].append(piece)
                if piece.at + piece.stop - piece.start < self._shard_tokens:
                    continue
                shard = Shard(key, shard_name(key, self._width), self._shard_tokens)
                yield shard, tuple(self._pieces.pop(key))
            self._sums[number] = Sums(documents + new.documents, after[number])

    def finish(self, shard: Shard, pieces: Iterable[Piece]) -> Iterator[tuple[TokenBlock, str]]:
        """Takes a finished shard; yields the parts of blocks of which it has the last tokens."""
        # The last shard of a split is not full: all checkpoints are deleted soon.
        if shard.key in self._finished or shard.tokens < self._shard_tokens:
            return
        self._finished.add(shard.key)
        for piece in pieces:
            part = piece.block, piece.stream
            self._unwritten[part] -= piece.stop - piece.start
            if not self._unwritten[part]:
                yield part
