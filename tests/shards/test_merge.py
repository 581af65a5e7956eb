"""Sorting by buckets, with merged runs and without: files on disk, and memory of a process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fresh_interpreter import run_program

from fineshards.shards.block_writer import Documents
from fineshards.shards.buckets import merge_runs, write_bucket
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import BlockSummary, Counts, report_file
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.layout import Shuffle, SplitRule
from fineshards.shards.shuffle_order import Bucket, Fragment, ShufflePlan, buckets_of, groups_of
from fineshards.shards.tables.documents import source_schema
from fineshards.storage.open import open_storage

RULE = SplitRule("1/5", None, "text", 1)
SHUFFLE = Shuffle(7, 1)
_Key = TypeVar("_Key")


def split_hash(row: int) -> int:
    return row * 2_654_435_761 % 2**32


def write_block(
    checkpoints: Checkpoints, file: int, index: int, blocks: int, lengths: list[int], cells: int
) -> BlockSummary:
    """A sorted block with rows from 100 * index; each token is its document's number."""
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
    with checkpoints.blocks.create_runs(place, SHUFFLE, 300, cells) as writer:
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
    blocks = [("blocks", summary) for of_file in files for summary in of_file]
    if plan.group:
        groups = gathered(pair for of_file in files for pair in groups_of(of_file, plan))
        assert len({group.place for group in groups}) == len(groups)
        blocks = [
            ("merged", merge_runs(group, fragments, SHUFFLE, checkpoints))
            for group, fragments in groups.items()
        ]
    buckets = gathered(
        pair
        for folder, each in blocks
        for pair in buckets_of(TokenBlock(folder, each.file, each.index), each, plan)
    )
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
    st.tuples(lengths_of_a_block, st.integers(0, 4)), min_size=1, max_size=3
)
two = st.tuples(st.integers(0, 4), st.integers(0, 4))


@settings(max_examples=60)
@given(
    st.lists(blocks_of_a_file, min_size=1, max_size=3),
    st.sampled_from([0, 7, 30, 200]),
    two,
    two,
)
def test_any_plan_gives_the_stream_of_a_plain_sort(
    sizes: list[list[tuple[list[int], int]]],
    group: int,
    bits: tuple[int, int],
    range_bits: tuple[int, int],
) -> None:
    """Also where runs have fewer cells than there are ranges, and ranges than buckets."""
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
        made = ShufflePlan.of([report_file(each) for each in files], RULE, 1 << 20, 4, None)
        plan = ShufflePlan(made.streams, bits, group, range_bits, made.token_offsets)
        assert sort(checkpoints, files, plan) == expected
        # What is there is found again.
        assert sort(checkpoints, files, plan) == expected


_PEAK = """
import re, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from fineshards.shards.block_writer import Documents
from fineshards.shards.buckets import merge_runs
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Counts
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.counts import report_file
from fineshards.shards.layout import Shuffle, SplitRule
from fineshards.shards.shuffle_order import ShufflePlan, groups_of
from fineshards.shards.tables.documents import source_schema
from fineshards.storage.open import open_storage

RULE, SHUFFLE = SplitRule(None, 0), Shuffle(1, 1)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

folder, blocks, cells, bucket, range_bits = sys.argv[1], *map(int, sys.argv[2:])
checkpoints = Checkpoints(open_storage(folder), "f", rule=RULE)
documents, length = 4096, 650
summaries = []
for index in range(blocks):
    place = TokenBlock("blocks", 0, index)
    rows = np.arange(documents) + documents * index
    columns = [np.zeros(documents), rows, pa.nulls(documents, pa.string()), rows]
    schema = source_schema(RULE)
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, schema)]
    sources = pa.record_batch(arrays, schema=schema)
    tokens = np.repeat(rows.astype(np.uint32), length)
    counts = Counts(rows=documents, documents=documents, tokens=len(tokens))
    with checkpoints.blocks.create_runs(place, SHUFFLE, 1 << 40, cells) as writer:
        writer.append(Documents(tokens, np.arange(documents + 1) * length, sources))
        summaries.append(writer.finish(index, blocks, counts))
del tokens, sources, arrays, columns, rows, writer
made = ShufflePlan.of([report_file(summaries)], RULE, 64 << 20, 4, None)
plan = ShufflePlan(made.streams, (8,), bucket // 4, (range_bits,), made.token_offsets)
pairs = [(group, one) for group, one in groups_of(summaries, plan) if group.prefix == 1]
group = pairs[0][0]
fragments = [one for other, one in pairs if other == group]
# Of the process so far, to begin with: the peak is reset to the memory that it has now.
Path("/proc/self/clear_refs").write_text("5")
before = peak()
summary = merge_runs(group, fragments, SHUFFLE, checkpoints)
print(before, peak(), summary.counts.tokens * 4)
"""


@pytest.mark.parametrize("cells", [0, 7])
def test_merging_a_range_of_many_runs_takes_the_memory_of_a_bucket(
    tmp_path: Path, cells: int
) -> None:
    """A group of 8 buckets' bytes; cells may be ranges, or a run may have one cell."""
    bucket, range_bits = 24 << 20, 3
    blocks = (bucket << range_bits) // (4096 * 650 * 4)
    done = run_program(_PEAK, tmp_path, blocks, cells, bucket, range_bits)
    assert done.returncode == 0, done.stderr
    before, peak, merged = map(int, done.stdout.split())
    assert 0.8 * bucket < merged < 1.2 * bucket
    assert peak - before < 2 * bucket
