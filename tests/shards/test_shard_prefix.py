"""Shards that are complete in a prefix of the blocks are those of the plan, piece by piece."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fineshards.shards.counts import Counts, Sums
from fineshards.shards.job.records import Block, Piece, TokenBlock
from fineshards.shards.job.source_counts import BlockSummary, report_file
from fineshards.shards.layout import Layout, Shard, ShardKey, SplitRule
from fineshards.shards.piece_plan import EarlierGeneration, plan_pieces, plan_stream
from fineshards.shards.shard_prefix import ShardPrefix

sums = st.one_of(
    st.just(Sums(0, 0)),
    st.integers(1, 4).flatmap(lambda n: st.builds(Sums, st.just(n), st.integers(n, 60))),
)
rules = st.one_of(
    st.builds(SplitRule, st.none(), st.integers(0, 4)),
    st.just(SplitRule("1/2", None, "text", 1)),
)


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
) -> tuple[Layout, dict[ShardKey, tuple[Piece, ...]]]:
    by_file = defaultdict(list)
    for summary in summaries:
        by_file[summary.file].append(summary)
    plan = plan_stream([report_file(each) for each in by_file.values()], shard_tokens, rule, held)
    pieces: dict[ShardKey, list[Piece]] = defaultdict(list)
    for of_file in by_file.values():
        for key, piece in plan_pieces(of_file, plan):
            pieces[key].append(piece)
    ordered = {key: sorted(found, key=lambda piece: piece.at) for key, found in pieces.items()}
    return plan.layout, {key: tuple(found) for key, found in ordered.items()}


@given(inputs(), st.randoms(use_true_random=False))
def test_what_is_complete_is_what_the_plan_says(
    given: tuple[list[BlockSummary], SplitRule, int, EarlierGeneration], draw: random.Random
) -> None:
    summaries, rule, shard_tokens, held = given
    prefix = ShardPrefix(map(block_of, summaries), shard_tokens, rule, held)
    arriving = draw.sample(summaries, len(summaries))
    found: dict[Shard, tuple[Piece, ...]] = {}
    for count, summary in enumerate(arriving, start=1):
        for shard, pieces in prefix.add(summary):
            assert shard not in found
            found[shard] = pieces
        arrived = {(each.file, each.index) for each in arriving[:count]}
        known = next(
            (i for i, each in enumerate(summaries) if (each.file, each.index) not in arrived),
            len(summaries),
        )
        layout, pieces_of = planned(summaries[:known], rule, shard_tokens, held)
        complete = {
            layout.shard(key): pieces
            for key, pieces in pieces_of.items()
            if layout.shard_length(key) == shard_tokens
        }
        assert found == complete, "at once, and neither more nor less"


@given(inputs(), st.randoms(use_true_random=False))
def test_a_part_is_written_with_the_last_shard_that_has_its_tokens(
    given: tuple[list[BlockSummary], SplitRule, int, EarlierGeneration], draw: random.Random
) -> None:
    summaries, rule, shard_tokens, held = given
    prefix = ShardPrefix(map(block_of, summaries), shard_tokens, rule, held)
    shards = [shard for summary in summaries for shard in prefix.add(summary)]
    _, pieces_of = planned(*given)
    left: dict[tuple[TokenBlock, str], set[ShardKey]] = defaultdict(set)
    for key, pieces in pieces_of.items():
        for piece in pieces:
            left[piece.block, piece.stream].add(key)
    for shard, pieces in draw.sample(shards, len(shards)):
        for of_part in left.values():
            of_part.discard(shard.key)
        written = [part for part, of_part in left.items() if not of_part]
        assert sorted(prefix.finish(shard, pieces)) == sorted(written)
        assert [*prefix.finish(shard, pieces)] == [], "a second time"
        for part in written:
            del left[part]


def test_names_have_as_many_digits_as_are_known() -> None:
    rule = SplitRule(None, 0)
    summary = BlockSummary(0, 0, 1, Counts(rows=1, documents=1, tokens=3))
    for width, names in ((None, ["9998", "9999", "10000"]), (5, ["09998", "09999", "10000"])):
        prefix = ShardPrefix(
            [block_of(summary)], 1, rule, holding([Sums(1, 9_998)], 1, rule), width
        )
        found = [shard.name for shard, _ in prefix.add(summary)]
        assert found == [f"train/train_{number}.npy" for number in names]
