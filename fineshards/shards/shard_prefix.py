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
from fineshards.shards.layout import Layout, Shard, ShardKey, SplitRule, shard_name, shard_stem
from fineshards.shards.piece_plan import pieces_of


class ShardPrefix:
    """Turns block summaries, in any order, into the shards that they complete.

    blocks: of the whole input, in order. held: what each stream held before them.
    """

    def __init__(
        self, blocks: Iterable[Block], shard_tokens: int, rule: SplitRule, held: Sequence[Sums] = ()
    ) -> None:
        expected = [*blocks]
        self._next = deque(block.place for block in expected)
        self._arrived: dict[TokenBlock, BlockSummary] = {}
        self._shard_tokens = shard_tokens
        self._rule = rule
        self._sums = list(held or (Sums(0, 0),) * len(rule.streams))
        self._pieces: dict[ShardKey, list[Piece]] = defaultdict(list)
        # More shards would have longer names, and how many there are shows at the end only.
        tokens = [sums.tokens for sums in self._sums]
        most = sum(block.bytes for block in expected)
        self._width = self._layout(tokens).index_width
        if self._layout([held + most for held in tokens]).index_width != self._width:
            self._next.clear()

    def _layout(self, tokens: Sequence[int]) -> Layout:
        return Layout.plan(tokens, self._shard_tokens, self._rule)

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
            for key, piece in pieces_of(place, stream, new.tokens, layout, offset, documents):
                self._pieces[key].append(piece)
                if piece.at + piece.stop - piece.start < self._shard_tokens:
                    continue
                pieces = tuple(self._pieces.pop(key))
                if layout.index_width == self._width:
                    yield layout.shard(key), pieces
            self._sums[number] = Sums(documents + new.documents, after[number])


def shards_of_part(
    shard: Shard, piece: Piece, tokens: int, shard_tokens: int, rule: SplitRule
) -> list[str]:
    """The names of all shards that tokens of a block's part go to.

    piece: of that part, in `shard`. tokens: of the whole part.
    """
    # Windows of a stream that is not divided by document are test at first, then train.
    test = 0 if rule.test_shards is None else rule.test_shards
    window = shard.key.index + (test if shard.key.split == "train" else 0)
    first = window * shard_tokens + piece.at - piece.start
    width = len(shard_stem(shard.name).rpartition("_")[2])
    names = []
    for window in range(first // shard_tokens, -(-(first + tokens) // shard_tokens)):
        key = ShardKey("train", window - test) if window >= test else ShardKey("test", window)
        if rule.by_document:
            key = ShardKey(piece.stream, window)
        names.append(shard_name(key, width))
    return names
