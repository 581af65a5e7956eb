"""The plan against a plain-Python model: which tokens of which block go where."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fineshards.errors import FineshardsError, InputError
from fineshards.shards.counts import (
    BlockSummary,
    Counts,
    Dropped,
    FileReport,
    LabelCount,
    Sums,
    check_reports,
    complete_file,
    report_file,
)
from fineshards.shards.job.records import Piece
from fineshards.shards.layout import ShardKey
from fineshards.shards.piece_plan import StreamPlan, plan_pieces, plan_stream
from fineshards.shards.split_rule import ByFraction, FirstShards

# A file is a list of blocks, a block is (documents, tokens).
Files = list[list[tuple[int, int]]]


def summaries_of(files: Files) -> list[list[BlockSummary]]:
    return [
        [
            BlockSummary(
                number,
                index,
                len(blocks),
                Counts(rows=documents, documents=documents, tokens=tokens),
            )
            for index, (documents, tokens) in enumerate(blocks)
        ]
        for number, blocks in enumerate(files)
    ]


def plan_of(
    summaries: list[list[BlockSummary]], shard_tokens: int, test_shards: int = 1
) -> StreamPlan:
    reports = [report_file(complete_file(blocks)) for blocks in summaries if blocks]
    return plan_stream(reports, shard_tokens, FirstShards(test_shards))


def pieces_of(summaries: list[list[BlockSummary]], plan: StreamPlan) -> dict[ShardKey, list[Piece]]:
    by_shard = defaultdict(list)
    for blocks in summaries:
        if blocks:
            for key, piece in plan_pieces(complete_file(blocks), plan):
                by_shard[key].append(piece)
    return by_shard


def place_of(piece: Piece) -> tuple[int, int]:
    """The file and the index of a piece's token block, which is that of a block."""
    assert piece.block.folder == "blocks"
    return piece.block.file, piece.block.index


@dataclass
class Model:
    """The offsets of blocks in the stream, added up one by one."""

    tokens: dict[tuple[int, int], int]
    documents: dict[tuple[int, int], int]
    total: int

    @classmethod
    def of(cls, files: Files) -> Model:
        names = [(file, block) for file, blocks in enumerate(files) for block in range(len(blocks))]
        flat = [block for blocks in files for block in blocks]
        tokens = list(accumulate((tokens for _, tokens in flat), initial=0))
        documents = list(accumulate((documents for documents, _ in flat), initial=0))
        return cls(
            dict(zip(names, tokens, strict=False)),
            dict(zip(names, documents, strict=False)),
            tokens[-1],
        )


def blocks(most_documents: int, most_tokens: int) -> st.SearchStrategy[tuple[int, int]]:
    """Blocks without documents have no tokens; others have at least one per document."""
    some = st.integers(1, most_documents).flatmap(
        lambda documents: st.tuples(st.just(documents), st.integers(documents, most_tokens))
    )
    return st.one_of(st.just((0, 0)), some)


# Blocks of few documents and many tokens give documents longer than several shards; blocks of 2**40
# tokens give offsets beyond 32 bits.
small_files = st.lists(st.lists(blocks(5, 40), max_size=5), min_size=1, max_size=6)
large_files = st.lists(st.lists(blocks(2**33, 2**40), max_size=5), min_size=1, max_size=6)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Files, int, int]:
    files = draw(st.one_of(small_files, large_files))
    total = sum(tokens for blocks in files for _, tokens in blocks)
    shard_tokens = draw(st.integers(max(1, total // 60), max(1, total) + 1))
    return files, shard_tokens, draw(st.integers(0, 5))


@given(streams())
def test_pieces_cover_every_shard_with_the_right_tokens(stream: tuple[Files, int, int]) -> None:
    files, shard_tokens, test_shards = stream
    model = Model.of(files)
    summaries = summaries_of(files)
    plan = plan_of(summaries, shard_tokens, test_shards)
    assert plan.layout.tokens == model.total
    by_shard = pieces_of(summaries, plan)
    windows = -(-model.total // shard_tokens)
    assert len(by_shard) == windows
    for window in range(windows):
        in_test = window < test_shards
        key = ShardKey("test", window) if in_test else ShardKey("train", window - test_shards)
        position = window * shard_tokens
        for piece in sorted(by_shard[key], key=lambda piece: piece.at):
            block = files[piece.block.file][piece.block.index]
            assert 0 <= piece.start < piece.stop <= block[1]
            assert piece.at == position - window * shard_tokens
            assert model.tokens[place_of(piece)] + piece.start == position
            assert piece.first_document == model.documents[place_of(piece)]
            position += piece.stop - piece.start
        assert position == min((window + 1) * shard_tokens, model.total)


@given(small_files, st.integers(1, 9), st.randoms(use_true_random=False))
def test_summaries_may_arrive_in_any_order(files: Files, shard_tokens: int, random: object) -> None:
    summaries = summaries_of(files)
    expected = plan_of(summaries, shard_tokens)
    shuffled = [list(blocks) for blocks in summaries]
    for blocks in shuffled:
        random.shuffle(blocks)  # type: ignore[attr-defined]
    reports = [report_file(complete_file(blocks)) for blocks in shuffled if blocks]
    random.shuffle(reports)  # type: ignore[attr-defined]
    plan = plan_stream(reports, shard_tokens, FirstShards(1))
    assert plan.layout == expected.layout
    assert np.array_equal(plan.token_offsets, expected.token_offsets)
    assert np.array_equal(plan.document_offsets, expected.document_offsets)
    assert pieces_of(shuffled, plan) == pieces_of(summaries, expected)


@st.composite
def divided(draw: st.DrawFn, files: st.SearchStrategy[Files]) -> list[list[BlockSummary]]:
    """Summaries of blocks that are divided between test and train."""

    def divide(summary: BlockSummary) -> BlockSummary:
        counts = summary.counts
        documents = draw(st.integers(0, counts.documents))
        # Each document has a token, and without documents there are none.
        least = documents
        most = counts.tokens - (counts.documents - documents)
        tokens = (
            draw(st.integers(least, most))
            if 0 < documents < counts.documents
            else (counts.tokens if documents else 0)
        )
        return replace(summary, test=Sums(documents, tokens))

    return [[divide(summary) for summary in blocks] for blocks in summaries_of(draw(files))]


@given(divided(small_files), st.integers(1, 9))
def test_two_streams_are_copied_one_after_the_other(
    summaries: list[list[BlockSummary]], shard_tokens: int
) -> None:
    reports = [report_file(complete_file(blocks)) for blocks in summaries if blocks]
    rule = ByFraction("1/100", "text", 1)
    plan = plan_stream(reports, shard_tokens, rule)
    by_shard = pieces_of(summaries, plan)
    assert sorted(by_shard) == sorted([shard.key for shard in plan.layout.shards()])
    for number, split in enumerate(("test", "train")):
        parts = [
            (summary.file, summary.index, summary.streams()[number])
            for blocks in summaries
            for summary in blocks
        ]
        stream = [
            (file, block, token) for file, block, sums in parts for token in range(sums.tokens)
        ]
        pieces = [
            piece
            for key in [shard.key for shard in plan.layout.shards()]
            if key.split == split
            for piece in sorted(by_shard[key], key=lambda piece: piece.at)
        ]
        assert {piece.stream for piece in pieces} <= {split}
        assert stream == [
            (*place_of(piece), token)
            for piece in pieces
            for token in range(piece.start, piece.stop)
        ]
        firsts = {place_of(piece): piece.first_document for piece in pieces}
        first_document = 0
        for file, block, sums in parts:
            assert firsts.get((file, block), first_document) == first_document
            first_document += sums.documents


def test_offsets_are_64_bit_and_pieces_hold_plain_ints() -> None:
    files = [[(3, 2**33), (1, 2**32 + 1)], [], [(0, 0)], [(7, 2**35)]]
    summaries = summaries_of(files)
    plan = plan_of(summaries, shard_tokens=2**33 + 5)
    assert plan.token_offsets.dtype == plan.document_offsets.dtype == np.int64
    first = 2**33 + 2**32 + 1
    assert plan.token_offsets.tolist() == [[0, first, first, first]]
    assert plan.document_offsets.tolist() == [[0, 4, 4, 4]]
    assert plan.layout.tokens == first + 2**35
    assert type(plan.layout.tokens) is int
    for pieces in pieces_of(summaries, plan).values():
        for piece in pieces:
            numbers = (piece.start, piece.stop, piece.at, piece.first_document)
            assert [type(number) for number in numbers] == [int] * 4


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ([0, 1], r"\[0, 1\]"),
        ([1, 2], r"\[1, 2\]"),
        ([0, 2], r"\[0, 2\]"),
        ([0, 1, 1, 2], r"\[0, 1, 1, 2\]"),
        ([2, 1, 0, 2], r"\[0, 1, 2, 2\]"),
        ([2], r"\[2\]"),
    ],
)
def test_a_missing_or_repeated_block_is_an_error_that_names_the_blocks(
    kept: list[int], found: str
) -> None:
    (file,) = summaries_of([[(1, 4), (1, 5), (1, 6)]])
    with pytest.raises(FineshardsError, match=rf"file 0: got blocks {found}, expected 0 to 2"):
        complete_file([file[index] for index in kept])
    assert complete_file([file[2], file[0], file[1]]) == file


@pytest.mark.parametrize("lost", ["rows", "documents", "nulls", "rejected"])
def test_rows_that_do_not_balance_are_an_error_with_all_numbers(lost: str) -> None:
    counts = Counts(rows=10, documents=5, nulls=3, rejected=2, tokens=50)
    other = BlockSummary(4, 1, 2, Counts(rows=7, documents=7, tokens=70))
    report = report_file([BlockSummary(4, 0, 2, counts), other])
    assert (report.file, report.blocks) == (4, 2)
    assert report.counts == Counts(rows=17, documents=12, nulls=3, rejected=2, tokens=120)
    off = BlockSummary(4, 0, 2, replace(counts, **{lost: getattr(counts, lost) + 1}))
    message = (
        rf"file 4 does not balance: {17 + (lost == 'rows')} rows, but "
        rf"{12 + (lost == 'documents')} documents, {3 + (lost == 'nulls')} null and "
        rf"{2 + (lost == 'rejected')} rejected"
    )
    with pytest.raises(FineshardsError, match=message):
        report_file([off, other])


def report_of(file: int, **counts: int) -> FileReport:
    return FileReport(file, 1, Counts(**counts))


def test_input_without_documents_is_an_error_with_its_rows() -> None:
    reports = [report_of(0, rows=5, nulls=5), report_of(1, rows=2, nulls=2)]
    with pytest.raises(InputError, match="the input has no documents: 7 rows, none with text"):
        check_reports(reports, max_bad_rows=0)
    with pytest.raises(InputError, match="the input has no documents: 0 rows"):
        check_reports([], max_bad_rows=0)


@pytest.mark.parametrize(("rejected", "words"), [(0, ""), (3, " Rejected rows: 3.")])
def test_a_recipe_that_leaves_no_documents_is_an_error_with_rejected_rows(
    rejected: int, words: str
) -> None:
    dropped = Counts(rows=2 + rejected, rejected=rejected, dropped=(Dropped(0, "exact", 2, 9),))
    message = (
        rf"{2 + rejected} rows, 2 of them dropped: 2 by step 1 \(exact\)\.{words} Loosen these"
    )
    with pytest.raises(InputError, match=message):
        check_reports([FileReport(0, 1, dropped)], max_bad_rows=3)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_rejected_rows_are_limited_over_all_files_together(limit: int) -> None:
    """Each file on its own has one."""
    reports = [report_of(file, rows=3, documents=2, rejected=1) for file in range(3)]
    with pytest.raises(
        InputError, match=rf"3 rows cannot be encoded.* allows {limit}\b.*metadata/rejected/"
    ):
        check_reports(reports, limit)
    check_reports(reports, max_bad_rows=3)


def test_a_file_report_sums_the_labels_of_its_blocks() -> None:
    first, second = (
        Counts(rows=rows, documents=rows, labels=(LabelCount("dump", "x", rows, 2 * rows),))
        for rows in (1, 2)
    )
    report = report_file([BlockSummary(0, 0, 2, first), BlockSummary(0, 1, 2, second)])
    assert report.counts.labels == (LabelCount("dump", "x", 3, 6),)
