"""Places that are known before all blocks are counted are those of the plan, piece by piece."""

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from fineshards.shards.counts import BlockSummary, Counts, Sums, report_file
from fineshards.shards.job.records import Block, TokenBlock
from fineshards.shards.layout import Layout, ShardKey
from fineshards.shards.piece_plan import EarlierGeneration, Place, Places, plan_pieces, plan_stream
from fineshards.shards.split_rule import ByFraction, FirstShards, SplitRule

sums = st.one_of(
    st.just(Sums(0, 0)),
    st.integers(1, 4).flatmap(lambda n: st.builds(Sums, st.just(n), st.integers(n, 60))),
)
rules = st.one_of(st.builds(FirstShards, st.integers(0, 4)), st.just(ByFraction("1/2", "text", 1)))


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[BlockSummary], SplitRule, int, EarlierGeneration]:
    """Block summaries in order, the rule, tokens per shard, and what was held before."""
    rule = draw(rules)
    summaries = []
    for file in range(draw(st.integers(1, 4))):
        parts = draw(st.lists(st.tuples(sums, sums), min_size=1, max_size=5))
        for index, (test, train) in enumerate(parts):
            documents, tokens = test.documents + train.documents, test.tokens + train.tokens
            counts = Counts(rows=documents, documents=documents, tokens=tokens)
            by_document = test if rule.by_document else None
            summaries.append(BlockSummary(file, index, len(parts), counts, by_document))
    held = draw(st.lists(sums, min_size=len(rule.streams), max_size=len(rule.streams)))
    return summaries, rule, (size := draw(st.integers(1, 50))), holding(held, size, rule)


def holding(sums: list[Sums], shard_tokens: int, rule: SplitRule) -> EarlierGeneration:
    layout = Layout.plan([each.tokens for each in sums], shard_tokens, rule)
    return EarlierGeneration(1, tuple(sums), layout.added)


def block_of(summary: BlockSummary) -> Block:
    return Block(summary.file, summary.index, summary.blocks, 0, 0, 0, 0)


def planned(
    summaries: list[BlockSummary], rule: SplitRule, shard_tokens: int, held: EarlierGeneration
) -> list[tuple[TokenBlock, str, int, int, ShardKey, int]]:
    by_file = defaultdict(list)
    for summary in summaries:
        by_file[summary.file].append(summary)
    plan = plan_stream([report_file(each) for each in by_file.values()], shard_tokens, rule, held)
    return [
        (piece.block, piece.stream, piece.start, piece.stop, key, piece.at)
        for of_file in by_file.values()
        for key, piece in plan_pieces(of_file, plan)
    ]


def pieces_of(
    place: Place, summary: BlockSummary, rule: SplitRule
) -> Iterator[tuple[TokenBlock, str, int, int, ShardKey, int]]:
    streams = zip(rule.streams, summary.streams(), place.offsets, strict=True)
    for stream, sums, offset in streams:
        for cut in place.layout.slices(offset, sums.tokens):
            yield place.block, stream, cut.start, cut.stop, cut.key, cut.at


@given(inputs(), st.randoms(use_true_random=False))
def test_a_place_is_known_as_soon_as_all_before_it_are_counted(
    given: tuple[list[BlockSummary], SplitRule, int, EarlierGeneration], draw: random.Random
) -> None:
    summaries, rule, shard_tokens, held = given
    of_block = {block_of(each).place: each for each in summaries}
    places = Places(shard_tokens, rule, held)
    places.expect(map(block_of, summaries[:2]))
    places.expect(map(block_of, summaries[2:]))
    found: list[tuple[TokenBlock, str, int, int, ShardKey, int]] = []
    arrived = set[TokenBlock]()
    for summary in draw.sample(summaries, len(summaries)):
        arrived.add(block_of(summary).place)
        known = [*takewhile(arrived.__contains__, of_block)]
        for place in places.add(summary):
            assert place.block in known
            found += pieces_of(place, of_block[place.block], rule)
        assert {block for block, *_ in found} == {
            block for block in known if of_block[block].counts.tokens
        }
    assert found == planned(*given), "each once, in order"
