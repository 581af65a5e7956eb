"""Sorting by buckets: files on disk."""

from collections import defaultdict
from collections.abc import Iterable
from tempfile import TemporaryDirectory
from typing import TypeVar
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fineshards.shards.assembly import write_bucket
from fineshards.shards.block_writer import Documents
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.layout import Shuffle
from fineshards.shards.shuffle_order import Bucket, Fragment, ShufflePlan, buckets_of
from fineshards.shards.split_rule import ByFraction
from fineshards.shards.tables.documents import source_schema
from fineshards.storage.open import open_storage

RULE = ByFraction("1/5", "text", 1)
SHUFFLE = Shuffle(7, 1)
_Key = TypeVar("_Key")


def split_hash(row: int) -> int:
    return row * 2_654_435_761 % 2**32


def write_block(
    checkpoints: Checkpoints, file: int, index: int, blocks: int, lengths: list[int], cell: int
) -> BlockSummary:
    """A sorted block with rows from 100 * index; each token is its document's number.

    cell: the bytes of a cell.
    """
    rows = [100 * index + row for row in range(len(lengths))]
    columns = {
        "file": [file] * len(rows),
        "row": rows,
        "id": [f"{file}:{row}" if row % 3 else None for row in rows],
        "split_hash": [split_hash(row) for row in rows],
    }
    counts = Counts(rows=len(rows), documents=len(rows), tokens=sum(lengths))
    place = TokenBlock("blocks", file, index)
    # A run has 300 bytes at least, which are some documents.
    with (
        patch("fineshards.shards.shuffle_order.CELL_BYTES", cell),
        checkpoints.blocks.create_runs(place, SHUFFLE, 300) as writer,
    ):
        for at in range(0, len(rows), 4):
            some = {name: column[at : at + 4] for name, column in columns.items()}
            sources = pa.RecordBatch.from_pydict(some, schema=source_schema(RULE))
            own = lengths[at : at + 4]
            offsets = np.cumsum([0, *own])
            tokens = np.repeat(np.array(rows[at : at + 4], np.uint32) + 1000 * file, own)
            writer.append(Documents(tokens.astype(np.uint32), offsets, sources))
        return writer.finish(index, blocks, counts)


def gathered(pairs: Iterable[tuple[_Key, Fragment]]) -> dict[_Key, tuple[Fragment, ...]]:
    """The values by key, in no order, as a shuffle brings them."""
    found = defaultdict(list)
    for key, value in pairs:
        found[key].insert(0, value)
    return {key: tuple(values) for key, values in found.items()}


def sort(
    checkpoints: Checkpoints, files: list[list[BlockSummary]], plan: ShufflePlan
) -> dict[str, list[int]]:
    """Sorts as the steps of the graph do; returns the tokens of each stream."""
    summaries = [summary for of_file in files for summary in of_file]
    buckets = gathered(pair for summary in summaries for pair in buckets_of(summary, plan))
    found: dict[str, list[int]] = {stream: [] for stream in RULE.streams}
    for number in sorted(buckets):
        bucket = Bucket.numbered(number, len(RULE.streams))
        summary = write_bucket(bucket, buckets[number], SHUFFLE, checkpoints)
        if not summary.counts.documents:
            continue
        stream, place = RULE.streams[bucket.stream], TokenBlock("buckets", number, 0)
        tokens = np.frombuffer(
            checkpoints.storage.read(checkpoints.blocks.tokens_name(place, stream)), np.uint32
        ).tolist()
        table = pq.read_table(
            checkpoints.storage.path(checkpoints.blocks.documents_name(place, stream))
        ).to_pylist()
        assert list(dict.fromkeys(tokens)) == [1000 * row["file"] + row["row"] for row in table]
        assert {row["id"] for row in table if row["row"] % 3 == 0} <= {None}
        found[stream] += tokens
    return found


lengths_of_a_block = st.lists(st.integers(1, 6), max_size=30)
blocks_of_a_file = st.lists(
    st.tuples(lengths_of_a_block, st.sampled_from([4, 16, 64, 1000])), min_size=1, max_size=3
)
two = st.tuples(st.integers(0, 4), st.integers(0, 4))


@settings(max_examples=60)
@given(st.lists(blocks_of_a_file, min_size=1, max_size=3), two)
def test_any_plan_gives_the_stream_of_a_plain_sort(
    sizes: list[list[tuple[list[int], int]]], bits: tuple[int, int]
) -> None:
    """Also where runs have fewer cells than there are buckets."""
    documents = {
        (file, 100 * index + row): length
        for file, of_file in enumerate(sizes)
        for index, (lengths, _) in enumerate(of_file)
        for row, length in enumerate(lengths)
    }
    places = sorted(
        documents,
        key=lambda place: (xxhash.xxh3_128_intdigest(f"{place[0]}:{place[1]}".encode(), 7), place),
    )
    expected: dict[str, list[int]] = {"test": [], "train": []}
    for file, row in places:
        stream = "test" if split_hash(row) < RULE.threshold else "train"
        expected[stream] += [1000 * file + row] * documents[file, row]
    with TemporaryDirectory() as folder:
        checkpoints = Checkpoints(open_storage(folder), "f", rule=RULE)
        files = [
            [
                write_block(checkpoints, file, index, len(of_file), *block)
                for index, block in enumerate(of_file)
            ]
            for file, of_file in enumerate(sizes)
        ]
        plan = ShufflePlan(RULE.streams, bits)
        assert sort(checkpoints, files, plan) == expected
        # What is there is found again.
        assert sort(checkpoints, files, plan) == expected
