"""Which earlier documents a document is compared with, against lists in plain Python."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.shards.tables.candidates import (
    MOST_CANDIDATES,
    candidates,
    join_pairs,
    more_candidates,
    wanted_by,
)
from fineshards.shards.tables.marks import (
    Records,
    by_file,
    file_of,
    firsts,
    key_records,
    positions,
    without_repeats,
)

# (key, file, row): keys that many documents of a file have.
ENTRIES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 30)), max_size=90)
MOST = pytest.mark.parametrize("most", range(1, MOST_CANDIDATES + 1))


def packed(entries: list[tuple[int, int, int]]) -> Records:
    places = [positions(file, np.array([row]))[0] for _, file, row in entries]
    keys = np.array([key << 60 for key, _, _ in entries], np.uint64)
    return key_records(keys, np.array(places, np.uint64))


def expected(records: Records, most: int) -> list[tuple[int, int]]:
    members: dict[int, set[int]] = defaultdict(set)
    for key, position in records.tolist():
        members[key].add(position)
    pairs = {
        (position, earlier)
        for group in members.values()
        for number, position in enumerate(sorted(group))
        for earlier in sorted(group)[: min(number, most)]
    }
    return sorted(pairs)


@MOST
@given(entries=ENTRIES)
def test_each_document_is_paired_with_the_first_ones_of_its_keys(
    most: int, entries: list[tuple[int, int, int]]
) -> None:
    records = packed(entries)
    assert candidates(records, most).tolist() == expected(records, most)


@MOST
@given(entries=ENTRIES)
def test_pairs_are_the_same_if_blocks_send_few_records_of_each_key(
    most: int, entries: list[tuple[int, int, int]]
) -> None:
    blocks = [
        np.unique(packed([entry for entry in entries if entry[1] == file])) for file in range(3)
    ]
    few, asked = (
        np.concatenate(parts)
        for parts in zip(*(without_repeats(each) for each in blocks), strict=True)
    )
    pairs = candidates(few, most)
    first = dict(by_file(firsts(few, asked, most)))
    nothing = firsts(few[:0], asked[:0], most)
    more = [more_candidates(block, first.get(n, nothing)) for n, block in enumerate(blocks)]
    whole = join_pairs(pairs, *more)
    assert whole.tolist() == expected(np.concatenate(blocks), most)
    # All contents that a file needs are sent to it, although it has more pairs than are known.
    sent = set(
        zip(*(wanted_by(pairs)[name].tolist() for name in ("position", "witness")), strict=True)
    )
    for position, witness in whole.tolist():
        file = int(file_of(np.array([position], np.uint64))[0])
        assert (witness, int(positions(file, np.zeros(1, np.int64))[0])) in sent
