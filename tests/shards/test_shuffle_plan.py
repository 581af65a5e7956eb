"""The arithmetic of the shuffle: keys, buckets, fragments; and that the order is random."""

from collections import defaultdict
from itertools import accumulate, pairwise

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fineshards.shards.counts import BlockSummary, Counts, FileReport, SortedRun, Sums
from fineshards.shards.job.records import TokenBlock
from fineshards.shards.layout import Shuffle
from fineshards.shards.shuffle_order import (
    CELL_BYTES,
    MOST_BUCKET_BYTES,
    Bucket,
    DocumentOrder,
    Fragment,
    ShufflePlan,
    buckets_of,
    cell_borders,
    fragments_of_run,
    key_order,
    shuffle_keys,
)
from fineshards.shards.split_rule import ByFraction

TWO = ByFraction("1/5", "text", 1)
MIB = 1 << 20


def keys_of(seed: int, files: list[int], rows: list[int]) -> np.ndarray:
    return shuffle_keys(seed, np.array(files, np.int32), np.array(rows, np.int64))


# Keys.


def test_the_keys_are_those_of_the_page() -> None:
    """As in docs/growing.md."""
    keys = keys_of(1, [0, 3], [0, 1017])
    found = [f"{upper:016x}{lower:016x}" for upper, lower in keys.tolist()]
    assert found == ["7eb4fec14183cc4543064413f0240a0e", "18cdc046f5a016ec4f2b798d63a52b41"]


places = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62)), max_size=20)


@given(places, st.integers(0, 2**63 - 1))
def test_the_order_is_that_of_the_hashes_as_numbers(
    given_places: list[tuple[int, int]], seed: int
) -> None:
    files, rows = ([place[axis] for place in given_places] for axis in (0, 1))
    keys = keys_of(seed, files, rows)
    expected = [
        xxhash.xxh3_128_intdigest(f"{file}:{row}".encode(), seed) for file, row in given_places
    ]
    assert [upper << 64 | lower for upper, lower in keys.tolist()] == expected
    order = key_order(keys).tolist()
    assert order == sorted(range(len(expected)), key=lambda index: (expected[index], index))
    unique = sorted(set(given_places), key=lambda place: expected[given_places.index(place)])
    follows = DocumentOrder(Shuffle(seed, 1), (2**31,)).follows
    columns = [np.array([place[axis] for place in unique], np.int64) for axis in (0, 1)]
    assert follows(*columns)
    if len(unique) > 1:
        assert not follows(columns[0][::-1], columns[1][::-1])
        # A document cannot come twice.
        assert not follows(*(np.concatenate([column, column[-1:]]) for column in columns))


def test_generations_follow_one_another_whatever_the_keys() -> None:
    rng = np.random.default_rng(0)
    files, rows = np.repeat(np.arange(4), 50), rng.integers(0, 1000, 200)
    places = np.unique(np.stack([files, rows], axis=1), axis=0)
    order = key_order(shuffle_keys(9, places[:, 0], places[:, 1]))
    shuffled = places[order]
    assert DocumentOrder(Shuffle(9, 1), (4,)).follows(shuffled[:, 0], shuffled[:, 1])
    assert not DocumentOrder(Shuffle(9, 1), (2, 4)).follows(shuffled[:, 0], shuffled[:, 1])
    early = shuffled[:, 0] < 2
    by_generation = np.concatenate([shuffled[early], shuffled[~early]])
    assert DocumentOrder(Shuffle(9, 1), (2, 4)).follows(by_generation[:, 0], by_generation[:, 1])
    assert not DocumentOrder(Shuffle(9, 1), (4,)).follows(by_generation[:, 0], by_generation[:, 1])


# The order is as random as numpy's.


def mixed(documents: int, files: int) -> list[int]:
    """The places, in the order of the input, of documents of several files in shuffled order."""
    each = documents // files
    return key_order(
        shuffle_keys(2026, np.repeat(np.arange(files), each), np.tile(np.arange(each), files))
    ).tolist()


def statistics_of(order: np.ndarray, files: int) -> dict[str, float]:
    """Numbers that are near 0 for a random permutation, in standard deviations of one.

    Sums of squares are compared with their mean and deviation under independence.
    """
    n = len(order)
    places = np.arange(n)
    centered = 2 * order / (n - 1) - 1
    found = {
        # Positions: whether a document's place says where it goes, coarsely and in cells.
        "correlation": float(np.mean(centered * (2 * places / (n - 1) - 1)) * 3 * np.sqrt(n)),
        # Neighbours: whether the next document says where this one was.
        "serial": float(np.mean(centered[1:] * centered[:-1]) * 3 * np.sqrt(n)),
        "rising": float((np.sum(order[1:] > order[:-1]) - (n - 1) / 2) / np.sqrt((n + 1) / 12)),
        "adjacent": float((np.sum(np.abs(np.diff(order)) == 1) - 2) / np.sqrt(2)),
    }
    cells = 16
    table = np.bincount(order * cells // n * cells + places * cells // n, minlength=cells**2)
    free = (cells - 1) ** 2
    chi2 = float(np.sum((table - n / cells**2) ** 2 / (n / cells**2)))
    found["cells"] = (chi2 - free) / np.sqrt(2 * free)
    # Files: how many documents of each file are in each shard of a thousand.
    shards = n // 1000
    table = np.bincount(
        order * files // n * shards + places * shards // n, minlength=files * shards
    )
    free = (files - 1) * (shards - 1)
    expected = n / files / shards
    found["files"] = float((np.sum((table - expected) ** 2 / expected) - free) / np.sqrt(2 * free))
    return found


def test_the_order_is_as_good_as_numpys_permutation() -> None:
    """Keys are fixed, so this always gives the same numbers."""
    documents, files = 40_000, 8
    ours = statistics_of(np.array(mixed(documents, files)), files)
    numpys = [
        statistics_of(np.random.default_rng(seed).permutation(documents), files)
        for seed in range(60)
    ]
    for name, value in ours.items():
        usual = sorted(abs(one[name]) for one in numpys)
        assert abs(value) <= usual[-1], (name, value, usual[-3:])
        assert abs(value) < 3.5
        # The statistic itself tells random orders from others.
        assert usual[-1] < 5, (name, usual[-3:])
    kept = statistics_of(np.arange(documents), files)
    assert all(abs(value) > 20 for value in kept.values()), kept


# The plan.

file_sizes = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 2**40)),
    min_size=1,
    max_size=8,
)


def report_of(file: int, blocks: int, test: int, train: int) -> FileReport:
    documents = (test > 0) + (train > 0)
    tokens = test + train
    counts = Counts(rows=documents, documents=documents, tokens=tokens, text_bytes=4 * tokens)
    return FileReport(file, blocks, counts, Sums(int(test > 0), test))


def test_default_buckets_fit_machines_with_4_gb_per_core() -> None:
    """15 trillion tokens, and less than 70 billion, which need no limit."""
    for tokens, limited in ((15_000 * 10**9, True), (60 * 10**9, False)):
        reports = [report_of(file, 30, tokens // 10_000, tokens // 1000) for file in range(1000)]
        plans = [
            ShufflePlan.of(reports, TWO, 4, asked, most)
            for asked, most in (
                (None, None),
                (None, MOST_BUCKET_BYTES),
                (4 << 30, 1),
                (4 << 30, None),
            )
        ]
        largest = [4 * tokens >> max(plan.bits) for plan in plans]
        assert largest[1] <= MOST_BUCKET_BYTES
        assert 2 * MOST_BUCKET_BYTES <= 0.75 * (4 << 30)
        assert (largest[0] > largest[1]) == limited
        # What was asked for is not limited.
        assert plans[2].bits == plans[3].bits


@given(file_sizes, st.none() | st.integers(1 << 20, 1 << 40), st.sampled_from([2, 4]))
def test_buckets_are_at_most_as_large_as_asked_for_and_not_far_smaller(
    sizes: list[tuple[int, int, int]], bucket_bytes: int | None, token_bytes: int
) -> None:
    reports = [report_of(file, *size) for file, size in enumerate(sizes)]
    plan = ShufflePlan.of(reports, TWO, token_bytes, bucket_bytes)
    totals = [sum(size[1 + stream] for size in sizes) * token_bytes for stream in range(2)]
    limit = bucket_bytes or max(256 * MIB, int((max(totals) * CELL_BYTES) ** 0.5))
    for bits, total in zip(plan.bits, totals, strict=True):
        if bits < 20:
            assert total >> bits <= limit
        assert bits == 0 or total >> (bits - 1) > limit - 1


@given(st.integers(1, 3), st.data())
def test_the_number_of_a_bucket_is_its_own_and_in_the_order_of_keys(
    streams: int, data: st.DataObject
) -> None:
    bits = st.integers(0, 20)
    some = st.lists(
        bits.flatmap(
            lambda b: st.builds(
                Bucket,
                st.integers(0, streams - 1),
                st.just(streams),
                st.just(b),
                st.integers(0, (1 << b) - 1),
            )
        ),
        max_size=30,
    )
    buckets = data.draw(some)
    assert [Bucket.numbered(bucket.number, streams) for bucket in buckets] == buckets
    assert len({bucket.number for bucket in buckets}) == len(set(buckets))
    for one in buckets:
        for other in buckets:
            if (one.stream, one.bits) == (other.stream, other.bits):
                assert (one.number < other.number) == (one.prefix < other.prefix)


# Documents in runs, in fragments. A document is (the upper half of its key, its length).

documents_of_a_run = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 9)), max_size=30
).map(sorted)


def run_of(documents: list[tuple[int, int]], bits: int, start: int = 0) -> SortedRun:
    """A run whose documents take one byte each in its file of documents, from byte 0."""
    borders = cell_borders(np.array([key for key, _ in documents], np.uint64), bits).tolist()
    ends = list(accumulate((length for _, length in documents), initial=start))
    return SortedRun("all", tuple(ends[border] for border in borders), tuple(borders))


@given(documents_of_a_run, st.integers(0, 7), st.integers(0, 7))
def test_each_bucket_gets_a_fragment_with_all_its_documents(
    documents: list[tuple[int, int]], cells: int, bits: int
) -> None:
    run = run_of(documents, cells)
    found = dict(fragments_of_run(TokenBlock("blocks", 0, 0), run, bits))
    wanted = defaultdict(list)
    for index, (key, _) in enumerate(documents):
        wanted[key >> (64 - bits) if bits else 0].append(index)
    assert found.keys() >= wanted.keys()
    ends = list(accumulate((length for _, length in documents), initial=0))
    for prefix, fragment in found.items():
        inside = range(fragment.first_byte, fragment.last_byte)
        assert len(inside) > 0
        assert Fragment.of(fragment.plain()) == fragment
        assert set(wanted[prefix]) <= set(inside)
        assert (fragment.start, fragment.stop) == (ends[inside[0]], ends[inside[-1] + 1])
        if cells >= bits:
            assert list(inside) == wanted[prefix], "exactly its own"


@st.composite
def blocks_in_files(draw: st.DrawFn) -> list[list[BlockSummary]]:
    """Summaries of blocks with runs in both streams."""
    files = []
    for file in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 4))
        of_file = []
        for index in range(count):
            runs, sums, at = [], {"test": [0, 0], "train": [0, 0]}, 0
            for stream in draw(st.lists(st.sampled_from(["test", "train"]), max_size=4)):
                documents = draw(documents_of_a_run.filter(bool))
                run = run_of(documents, draw(st.integers(0, 4)), at)
                runs.append(SortedRun(stream, run.tokens, run.documents))
                at = run.tokens[-1]
                sums[stream][0] += len(documents)
                sums[stream][1] += run.tokens[-1] - run.tokens[0]
            both = [a + b for a, b in zip(sums["test"], sums["train"], strict=True)]
            counts = Counts(rows=both[0], documents=both[0], tokens=both[1])
            test = Sums(*sums["test"])
            of_file.append(BlockSummary(file, index, count, counts, test, tuple(runs)))
        files.append(of_file)
    return files


@settings(max_examples=25)
@given(blocks_in_files(), st.integers(0, 4), st.integers(0, 4))
def test_buckets_get_their_fragments_from_every_run(
    files: list[list[BlockSummary]], test_bits: int, train_bits: int
) -> None:
    plan = ShufflePlan(TWO.streams, (test_bits, train_bits))
    for blocks in files:
        for summary in blocks:
            place = TokenBlock("blocks", summary.file, summary.index)
            found = list(buckets_of(summary, plan))
            assert all(one.block == place for _, one in found)
            expected = [
                (Bucket(stream, 2, plan.bits[stream], prefix).number, one)
                for run in summary.runs
                for stream in [plan.streams.index(run.stream)]
                for prefix, one in fragments_of_run(place, run, plan.bits[stream])
            ]
            assert found == expected


@pytest.mark.parametrize("bits", [0, 1, 5])
def test_cells_begin_where_the_leading_bits_change(bits: int) -> None:
    keys = np.sort(np.random.default_rng(1).integers(0, 2**64, 200, np.uint64))
    borders = cell_borders(keys, bits)
    assert (borders[0], borders[-1], len(borders)) == (0, 200, 2**bits + 1)
    for cell, (first, stop) in enumerate(pairwise(borders.tolist())):
        assert {int(key) >> (64 - bits) if bits else 0 for key in keys[first:stop]} <= {cell}
    assert cell_borders(np.empty(0, np.uint64), bits).tolist() == [0] * (2**bits + 1)
