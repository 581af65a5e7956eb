"""Marks and components against dicts and a union-find, in every order and partition."""

import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.errors import FineshardsError
from fineshards.shards.tables.marks import (
    EDGE,
    MOST_EDGES,
    by_file,
    components,
    edges,
    external_positions,
    file_of,
    first_records,
    is_external,
    key_dtype,
    key_records,
    mark,
    mark_dtype,
    may_be_marked,
    merge_marks,
    positions,
    row_of,
    split,
)

# Entries of an index, spared documents of test, others of test, and documents of train.
INDEX, SPARED, TEST, TRAIN = 0, 1 << 61, 1 << 62, 1 << 63
# A key (one or two numbers), a position, a span.
Entry = tuple[tuple[int, ...], int, int]

# Few values, so that most keys are shared; the largest ones, so that no comparison is signed; keys
# that are equal in one half only.
NUMBERS = st.sampled_from([0, 1, 2, 3, 1 << 62, TRAIN, (3 << 62) + 1, 2**64 - 1])
PLACES = st.builds(
    lambda kind, file, row: kind + (file << 40) + row,
    st.sampled_from([INDEX, SPARED, TEST, TRAIN, TRAIN]),
    st.sampled_from([0, 1, (1 << 21) - 1]),
    st.sampled_from([0, 1, 2, 3, (1 << 40) - 1]),
)
SPANS = st.sampled_from([0, 1, 2, 70_000, 2**32 - 1])


def entries(bits: int) -> st.SearchStrategy[list[Entry]]:
    key = st.tuples(*[NUMBERS] * (bits // 64))
    return st.lists(st.tuples(key, PLACES, SPANS), max_size=40)


KINDS = pytest.mark.parametrize(
    ("bits", "spans"), [(64, False), (64, True), (128, False), (128, True)]
)


def packed(found: list[Entry], bits: int, spans: bool) -> np.ndarray:
    """Records in the order given, without the function that makes them."""
    records = np.empty(len(found), key_dtype(bits, spans))
    for index, (key, position, span) in enumerate(found):
        records[index] = ((key[0] if bits == 64 else key), position, *([span] if spans else []))
    return records


def listed(array: np.ndarray) -> list[Any]:
    return array.tolist()


def groups(found: list[Entry]) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """The (position, span) of each key."""
    by_key: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for key, position, span in found:
        by_key.setdefault(key, []).append((position, span))
    return by_key


def expected_marks(found: list[Entry], spans: bool, only_external: bool) -> list[Any]:
    """`mark` in plain Python."""
    witnesses: dict[tuple[int, ...], int] = {}
    for members in groups(found).values():
        plain = members if spans else [(position, 0) for position, _ in members]
        first = min(plain)
        for place in plain:
            wanted = first[0] < SPARED if only_external else True
            if place != first and place[0] >= TEST and wanted:
                name = place if spans else place[:1]
                witnesses[name] = min(witnesses.get(name, first[0]), first[0])
    return [(*name, witness) for name, witness in sorted(witnesses.items())]


def expected_components(links: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """`components` by a union-find to the minimum."""
    parent: dict[int, int] = {}

    def root(node: int) -> int:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for left, right in links:
        low, high = sorted((root(left), root(right)))
        parent[high] = low
    return sorted((node, root(node)) for node in parent if node >= TEST and root(node) != node)


NUMBERED = {
    INDEX: (external_positions, 1 << 21),
    SPARED: (partial(positions, kind=np.uint64(SPARED)), 1 << 21),
    TEST: (partial(positions, kind=np.uint64(TEST)), 1 << 21),
    TRAIN: (positions, 1 << 23),
}


@pytest.mark.parametrize("kind", NUMBERED)
@given(st.data())
def test_a_position_is_the_order_of_the_stream(kind: int, data: st.DataObject) -> None:
    numbered, files = NUMBERED[kind]
    file = data.draw(st.sampled_from([files - 1, 0]) | st.integers(0, files - 1))
    rows = data.draw(st.lists(st.integers(0, (1 << 40) - 1), min_size=1, max_size=5))
    places = numbered(file, np.array(rows))
    assert places.tolist() == [kind | file << 40 | row for row in rows]
    assert (file_of(places) == file).all()
    assert row_of(places).tolist() == rows
    assert (is_external(places) == (kind == INDEX)).all()
    assert (may_be_marked(places) == (kind >= TEST)).all()


@pytest.mark.parametrize("kind", NUMBERED)
def test_a_number_that_has_no_position_is_an_error(kind: int) -> None:
    numbered, files = NUMBERED[kind]
    with pytest.raises(FineshardsError, match=rf"{files:,} is too high .* {files:,} of them"):
        numbered(files, np.array([0]))
    with pytest.raises(FineshardsError, match=r"number 1,099,511,627,776 is too high"):
        numbered(0, np.array([5, 1 << 40, 7]))
    assert len(numbered(0, np.array([], np.int64))) == 0


@pytest.mark.parametrize(
    ("bits", "spans", "size"), [(64, False, 16), (64, True, 20), (128, False, 24), (128, True, 28)]
)
def test_records_are_packed(bits: int, spans: bool, size: int) -> None:
    dtype = key_dtype(bits, spans)
    assert dtype.itemsize == size
    assert dtype.names == ("key", "position", "span")[: 2 + spans]
    assert mark_dtype(spans).itemsize == 16 + 4 * spans
    record = packed([((2,) if bits == 64 else (1, 2), 3, 4)], bits, spans)
    numbers = [(2, 8)] if bits == 64 else [(1, 8), (2, 8)]
    numbers += [(3, 8), (4, 4)] if spans else [(3, 8)]
    assert record.tobytes() == b"".join(n.to_bytes(size, "little") for n, size in numbers)


@KINDS
@given(data=st.data())
def test_records_are_sorted_and_cut_by_their_leading_bits(
    data: st.DataObject, bits: int, spans: bool
) -> None:
    found = data.draw(entries(bits))
    keys = np.array([key for key, _, _ in found], np.uint64).reshape(len(found), bits // 64)
    places = np.array([position for _, position, _ in found], np.uint64)
    numbers = np.array([span for _, _, span in found], np.uint32)
    made = key_records(keys[:, 0] if bits == 64 else keys, places, numbers if spans else None)
    expected = sorted(found if spans else [(*entry[:2], 0) for entry in found])
    assert made.tobytes() == packed(expected, bits, spans).tobytes()

    power = data.draw(st.integers(0, 6))
    parts = split(made, 1 << power)
    assert len(parts) == 1 << power
    assert b"".join(part.tobytes() for part in parts) == made.tobytes()
    for number, part in enumerate(parts):
        leading = part["key"].reshape(len(part), bits // 64)[:, 0].tolist()
        assert all(key >> (64 - power) == number for key in leading)


@KINDS
@pytest.mark.parametrize("only_external", [False, True])
@given(data=st.data())
def test_all_but_the_first_of_a_key_are_marked(
    data: st.DataObject, bits: int, spans: bool, only_external: bool
) -> None:
    found = data.draw(entries(bits))
    marked = mark(packed(found, bits, spans), only_external)
    assert marked.dtype == mark_dtype(spans)
    assert listed(marked) == expected_marks(found, spans, only_external)


@KINDS
@given(data=st.data())
def test_marks_do_not_depend_on_partitions_or_order(
    data: st.DataObject, bits: int, spans: bool
) -> None:
    found = data.draw(entries(bits))
    shuffled = data.draw(st.permutations(found))
    whole = mark(packed(found, bits, spans))
    ranges: dict[int, list[Entry]] = {}
    power = data.draw(st.integers(0, 6))
    for entry in shuffled:
        ranges.setdefault(entry[0][0] >> (64 - power), []).append(entry)
    parts = [mark(packed(each, bits, spans)) for each in ranges.values()]
    assert merge_marks(parts, mark_dtype(spans)).tobytes() == whole.tobytes()
    # Joined in two steps, and a part twice.
    some = merge_marks(parts[::2], mark_dtype(spans))
    assert merge_marks([some, *parts[::-1]], mark_dtype(spans)).tobytes() == whole.tobytes()


@KINDS
@pytest.mark.parametrize("only_external", [False, True])
@given(data=st.data())
def test_marks_and_links_are_the_same_if_the_records_of_a_key_come_in_parts(
    data: st.DataObject, bits: int, spans: bool, only_external: bool
) -> None:
    parts = [packed(part, bits, spans) for part in data.draw(st.lists(entries(bits), max_size=4))]
    whole = np.concatenate([np.empty(0, key_dtype(bits, spans)), *parts])
    first = whole[:0]
    for part in parts:
        first = first_records(np.concatenate([first, part]), 1)
    assert len(first) == len(np.unique(whole["key"], axis=0))
    joined = [np.concatenate([first, part]) for part in parts]
    marks = merge_marks([mark(each, only_external) for each in joined], mark_dtype(spans))
    assert marks.tobytes() == mark(whole, only_external).tobytes()
    links = np.concatenate([np.empty(0, EDGE), *map(edges, joined)])
    assert set(links.tolist()) == set(edges(whole).tolist())


def test_a_line_that_a_document_repeats_has_the_document_as_its_witness() -> None:
    place = TRAIN + 7
    marked = mark(packed([((1,), place, 4), ((1,), place, 2)], 64, True))
    assert listed(marked) == [(place, 4, place)]


@given(st.lists(PLACES, max_size=30))
def test_marks_are_cut_by_file(places: list[int]) -> None:
    own = sorted({place | TRAIN for place in places})
    marked = np.array([(place, 1) for place in own], mark_dtype())
    files = dict(by_file(marked))
    assert list(files) == sorted(files)
    assert [place for part in files.values() for place in part["position"].tolist()] == own
    assert all((file_of(part["position"]) == file).all() for file, part in files.items())


@pytest.mark.parametrize("bits", [64, 128])
@given(data=st.data())
def test_edges_link_each_document_to_the_first_of_its_keys(data: st.DataObject, bits: int) -> None:
    found = data.draw(entries(bits))
    expected = {
        (member, min(members)[0])
        for members in groups(found).values()
        for member, _ in members
        if member != min(members)[0]
    }
    linked = edges(packed(found, bits, False))
    assert list(zip(linked["member"].tolist(), linked["smallest"].tolist(), strict=True)) == sorted(
        expected
    )


@given(data=st.data())
def test_components_are_those_of_all_keys_however_they_are_partitioned(data: st.DataObject) -> None:
    found = data.draw(entries(64))
    links = [
        (member, other)
        for members in groups(found).values()
        for member, _ in members
        for other, _ in members
    ]
    ranges: dict[int, list[Entry]] = {}
    for entry in found:
        ranges.setdefault(entry[0][0] >> 61, []).append(entry)
    parts = data.draw(st.permutations([edges(packed(e, 64, False)) for e in ranges.values()]))
    gathered = np.concatenate([np.empty(0, EDGE), *parts, *parts[:1]])
    assert listed(components(gathered)) == expected_components(links)


def edge_array(smallest: np.ndarray, member: np.ndarray) -> np.ndarray:
    linked = np.empty(len(member), EDGE)
    linked["smallest"], linked["member"] = smallest, member
    return linked


@pytest.mark.parametrize("shape", ["chain", "chain of random order", "star", "pairs"])
def test_large_components_are_found_whole(shape: str) -> None:
    n = 1_000_000
    nodes = np.arange(n, dtype=np.uint64) + np.uint64(TRAIN)
    survivor = np.full(n, TRAIN, np.uint64)
    if shape == "star":
        linked = edge_array(survivor[1:], nodes[1:])
    elif shape == "pairs":
        linked = edge_array(nodes[0::2], nodes[1::2])
        survivor = np.repeat(nodes[0::2], 2)
    else:
        path = nodes
        if shape == "chain of random order":
            path = np.random.default_rng(5).permutation(nodes)
        linked = edge_array(np.minimum(path[1:], path[:-1]), np.maximum(path[1:], path[:-1]))
    marked = components(linked)
    others = nodes != survivor
    assert np.array_equal(marked["position"], nodes[others])
    assert np.array_equal(marked["witness"], survivor[others])


@pytest.mark.long
@pytest.mark.parametrize("nodes", [20_000, 400_000])
def test_many_edges_have_the_components_of_a_union_find(nodes: int) -> None:
    """One large component and some nodes; many small ones."""
    generator = np.random.default_rng(nodes)
    ends = generator.integers(0, nodes, (200_000, 2)).astype(np.uint64)
    # A quarter of them are entries of an index.
    ends |= np.where(ends % 4 == 0, np.uint64(0), np.uint64(TRAIN))
    ends = ends[ends[:, 0] != ends[:, 1]]
    marked = components(edge_array(ends.min(1), ends.max(1)))
    assert listed(marked) == expected_components(map(tuple, ends.tolist()))


def test_too_many_edges_are_an_error_that_says_what_to_do() -> None:
    linked = edge_array(np.array([1, 2, 3], np.uint64), np.array([4, 5, 6], np.uint64))
    with pytest.raises(FineshardsError, match=r'^3 links .* at most 2\. Use rule = "earlier"'):
        components(linked, most=2)
    # Numbers of nodes are signed, of 32 bits.
    assert 2 * MOST_EDGES < 2**31


def peak(run: Callable[[], object]) -> int:
    """Bytes that a call needs, with what it returns."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize(("share", "most"), [(0.0, 40), (1.0, 110)])
def test_records_and_marks_need_the_memory_that_they_state(
    bits: int, share: float, most: int
) -> None:
    n = 200_000
    generator = np.random.default_rng(3)
    keys = generator.integers(0, 2**64, (n, bits // 64), np.uint64)
    if share:
        keys[: n // 2] = keys[n // 2 :]
    records = np.empty(n, key_dtype(bits))
    records["key"] = keys[:, 0] if bits == 64 else keys
    records["position"] = positions(0, generator.permutation(n))
    made = peak(lambda: key_records(records["key"], records["position"]))
    assert made <= (40 + 2 * records.itemsize) * n + 100_000
    assert peak(lambda: mark(records)) <= most * n + 100_000


def test_components_need_the_memory_that_they_state() -> None:
    n = 200_000
    nodes = positions(0, np.random.default_rng(3).permutation(2 * n))
    linked = edge_array(*np.sort(nodes.reshape(2, n), axis=0))
    components(linked[:10])  # scipy itself
    assert peak(lambda: components(linked)) <= 91 * n + 100_000
