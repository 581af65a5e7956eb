"""Document tables: from a token to its document and back, against a model of the stream."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineshards.errors import FineshardsError
from fineshards.shards.assembly import write_shard
from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts, report_file
from fineshards.shards.job.records import Piece, TokenBlock
from fineshards.shards.layout import Layout, ShardKey, table_name
from fineshards.shards.npy import header
from fineshards.shards.piece_plan import plan_pieces, plan_stream
from fineshards.shards.split_rule import ByFraction, FirstShards, SplitRule
from fineshards.shards.tables.documents import (
    DocumentPiece,
    DocumentTable,
    source_schema,
    table_schema,
)
from fineshards.storage.open import open_storage

NO_TEST = FirstShards(0)

# A file is a list of blocks, a block is a list of document lengths.
Files = list[list[list[int]]]
files_of_documents = st.lists(
    st.lists(st.lists(st.integers(1, 12), max_size=4), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


@dataclass
class Token:
    """A token of the stream in the model. start: its index in its document."""

    document: int
    start: int
    file: str
    row: int
    id: str | None


def made_up_hash(file: int, row: int) -> int:
    """The split hash of a row: about a third are below a third of 2**32."""
    return (file * 1_000_003 + row * 7919 + 1) * 2_654_435_761 % 2**32


def made_up_text_hash(file: int, row: int) -> int:
    return 2**64 - 1 - file - 1000 * row


def model(files: Files, rule: SplitRule = NO_TEST) -> dict[str, list[Token]]:
    """The tokens of each stream; documents are numbered in it."""
    streams = {}
    for stream in rule.streams:
        own: list[Token] = []
        document = 0
        for number, blocks in enumerate(files):
            for row, length in enumerate(length for lengths in blocks for length in lengths):
                is_test = made_up_hash(number, row) < 2**32 // 3
                if rule.by_document and is_test != (stream == "test"):
                    continue
                id_ = f"f{number}r{row}" if row % 3 else None
                own += [
                    Token(document, start, f"/in/{number}", row, id_) for start in range(length)
                ]
                document += 1
        streams[stream] = own
    return streams


def sources_of(file: int, rows: list[int], rule: SplitRule) -> pa.RecordBatch:
    schema = source_schema(rule)
    columns = {
        "file": [file] * len(rows),
        "row": rows,
        "id": [f"f{file}r{row}" if row % 3 else None for row in rows],
        "split_hash": [made_up_hash(file, row) for row in rows],
        "text_hash": [made_up_text_hash(file, row) for row in rows],
    }
    return pa.record_batch(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def write_blocks(
    checkpoints: Checkpoints, files: Files, rule: SplitRule = NO_TEST
) -> list[list[BlockSummary]]:
    """Token blocks in which every token is its index in the input."""
    summaries, position = [], 0
    for number, blocks in enumerate(files):
        row, of_file = 0, []
        for index, lengths in enumerate(blocks):
            with checkpoints.blocks.create_block(TokenBlock("blocks", number, index)) as writer:
                offsets = np.array([0, *accumulate(lengths)], dtype=np.int64)
                tokens = np.arange(position, position + sum(lengths), dtype=np.uint32)
                rows = list(range(row, row + len(lengths)))
                writer.append(Documents(tokens, offsets, sources_of(number, rows, rule)))
                count = len(lengths)
                counts = Counts(rows=count, documents=count, tokens=len(tokens))
                of_file.append(writer.finish(index, len(blocks), counts))
            row, position = row + count, position + len(tokens)
        summaries.append(of_file)
    return summaries


@pytest.mark.long
@settings(max_examples=60)
@given(
    files=files_of_documents,
    shard_tokens=st.integers(1, 15),
    rule=st.sampled_from(
        [FirstShards(1), ByFraction("1/3", "text", 1), ByFraction("1/3", "id", 1)]
    ),
    first=st.integers(0, 99),
    data=st.data(),
)
def test_document_tables_locate_every_token_and_every_document(
    tmp_path_factory: pytest.TempPathFactory,
    files: Files,
    shard_tokens: int,
    rule: SplitRule,
    first: int,
    data: st.DataObject,
) -> None:
    streams = model(files, rule)
    in_input = {(token.file, token.row, token.start): 0 for token in model(files)["all"]}
    in_input = dict(zip(in_input, range(len(in_input)), strict=True))
    storage = open_storage(str(tmp_path_factory.mktemp("out")))
    checkpoints = Checkpoints(storage, "f1ng3r", rule=rule)
    summaries = write_blocks(checkpoints, files, rule)
    for blocks in summaries:
        for summary in blocks:
            place = TokenBlock("blocks", summary.file, summary.index)
            assert checkpoints.blocks.read_summary(place) == summary
    plan = plan_stream([report_file(blocks) for blocks in summaries], shard_tokens, rule)
    pieces: dict[ShardKey, list[Piece]] = {}
    for blocks in summaries:
        for key, piece in plan_pieces(blocks, plan):
            pieces.setdefault(key, []).append(piece)
    assert sorted(pieces) == sorted([shard.key for shard in plan.layout.shards()])
    paths = [f"/in/{number}" for number in range(len(files))]
    for window, key in enumerate([shard.key for shard in plan.layout.shards()]):
        arrived = data.draw(st.permutations(pieces[key]))
        record = write_shard(plan.layout.shard(key), arrived, checkpoints, paths)
        place, stream = (key.index, key.split) if rule.by_document else (window, "all")
        own = streams[stream][place * shard_tokens : (place + 1) * shard_tokens]
        payload = np.array([in_input[t.file, t.row, t.start] for t in own], dtype="<u4")
        content = checkpoints.storage.read(record.name)
        assert content == header(len(own)) + payload.tobytes()

        opened = checkpoints.storage.open(table_name(record.name))
        # A reader may number the documents of the stream from another number.
        table = DocumentTable.read(opened, table_schema(rule), first)
        check_table(table, own, rule, first)
        assert record.pieces == len(table)
        assert record.documents == sum(token.start == 0 for token in own)
        assert record.first_document == own[0].document
        assert record.tokens == len(own)
        assert checkpoints.finished_shard(record.name) == record
        assert write_shard(plan.layout.shard(key), arrived, checkpoints, paths) == record


def file_of(token: Token) -> int:
    return int(token.file.rpartition("/")[2])


def check_table(table: DocumentTable, own: list[Token], rule: SplitRule, number: int) -> None:
    expected: dict[int, tuple[int, Token]] = {}
    for offset, token in enumerate(own):
        expected.setdefault(number + token.document, (offset, token))
    found = [table.piece(index) for index in range(len(table))]
    assert found == [
        DocumentPiece(
            document,
            offset,
            sum(number + token.document == document for token in own),
            first.start,
            first.file,
            first.row,
            first.id,
            made_up_hash(file_of(first), first.row) if rule.by_document else None,
            made_up_text_hash(file_of(first), first.row) if rule.may_leak else None,
            redacted=False,
        )
        for document, (offset, first) in expected.items()
    ]
    for offset, token in enumerate(own):
        piece = table.piece(table.index_of_token(offset))
        assert (piece.document, piece.start + offset - piece.offset) == (
            number + token.document,
            token.start,
        )
    for index, document in enumerate(expected):
        assert table.index_of_document(document) == index
    for absent in (min(expected) - 1, max(expected) + 1):
        with pytest.raises(KeyError):
            table.index_of_document(absent)
    sums = {
        path: (
            sum(token.file == path for token in own),
            sum(token.file == path and token.start == 0 for token in own),
        )
        for path in {token.file for token in own}
    }
    assert table.sums_by_file() == sums


def test_a_document_in_three_shards_has_a_row_in_each(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    checkpoints = Checkpoints(open_storage(str(tmp_path_factory.mktemp("out"))), "f1ng3r")
    (summaries,) = write_blocks(checkpoints, [[[2, 25, 1]]])
    plan = plan_stream([report_file(summaries)], 10, FirstShards(0))
    rows = []
    for key, piece in plan_pieces(summaries, plan):
        record = write_shard(plan.layout.shard(key), [piece], checkpoints, ["/in/0"])
        table = DocumentTable.read(
            checkpoints.storage.open(table_name(record.name)), table_schema(NO_TEST)
        )
        own = map(table.piece, range(len(table)))
        rows.append([(row.document, row.offset, row.length, row.start) for row in own])
    assert rows == [[(0, 0, 2, 0), (1, 2, 8, 0)], [(1, 0, 10, 8)], [(1, 0, 7, 18), (2, 7, 1, 0)]]


def one_shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoints, list[Piece], Layout]:
    checkpoints = Checkpoints(open_storage(str(tmp_path_factory.mktemp("out"))), "f1ng3r")
    (summaries,) = write_blocks(checkpoints, [[[3, 4], [5]]])
    plan = plan_stream([report_file(summaries)], 100, FirstShards(0))
    return checkpoints, [piece for _, piece in plan_pieces(summaries, plan)], plan.layout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pieces: pieces[:1], "hold 7 tokens, expected 12"),
        (lambda pieces: pieces[1:], "expected a piece at token 0"),
        (lambda pieces: [*pieces, pieces[1]], "expected a piece at token 12"),
        (lambda pieces: [], "hold 0 tokens, expected 12"),
    ],
)
def test_pieces_that_do_not_cover_a_shard_are_an_error_and_no_shard_is_written(
    tmp_path_factory: pytest.TempPathFactory,
    change: Callable[[list[Piece]], list[Piece]],
    message: str,
) -> None:
    checkpoints, pieces, layout = one_shard(tmp_path_factory)
    (key,) = [shard.key for shard in layout.shards()]
    with pytest.raises(FineshardsError, match=rf"train/train_0000\.npy: .*{message}"):
        write_shard(layout.shard(key), change(pieces), checkpoints, ["/in/0"])
    assert list(checkpoints.storage.entries("train")) == []


def test_a_token_block_cut_short_is_an_error_and_no_shard_is_written(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    checkpoints, pieces, layout = one_shard(tmp_path_factory)
    (key,) = [shard.key for shard in layout.shards()]
    name = checkpoints.blocks.tokens_name(TokenBlock("blocks", 0, 1))
    checkpoints.storage.write(name, checkpoints.storage.read(name)[:-4])
    with pytest.raises(FineshardsError, match=r"00000-00001\.tokens ended 4 bytes early"):
        write_shard(layout.shard(key), pieces, checkpoints, ["/in/0"])
    assert list(checkpoints.storage.entries("train")) == []


def test_a_table_of_another_schema_is_refused() -> None:
    content = BytesIO()
    pq.write_table(pa.table({"document": pa.array([1], pa.int32())}), content)
    with pytest.raises(
        ValueError, match=r"the columns \['document'\], expected \['document', 'off"
    ):
        DocumentTable.read(BytesIO(content.getvalue()), table_schema(NO_TEST))
