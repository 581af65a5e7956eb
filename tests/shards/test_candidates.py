"""Which earlier documents a document is compared with, against lists in plain Python."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.errors import OutputError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Block
from fineshards.shards.tables.decisions import drops
from fineshards.shards.tables.marks import (
    MOST_CANDIDATES,
    Records,
    candidates,
    file_of,
    first_records,
    join_pairs,
    key_dtype,
    key_records,
    mark,
    positions,
    wanted_by,
)
from fineshards.shards.tables.verdicts import StageFiles
from fineshards.storage.open import open_storage

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
@given(entries=ENTRIES, size=st.integers(1, 40))
def test_pairs_are_the_same_if_the_records_of_a_key_come_in_parts(
    most: int, entries: list[tuple[int, int, int]], size: int
) -> None:
    whole, first = packed(entries), packed([])
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    for part in parts:
        first = first_records(np.concatenate([first, part]), most)
    pairs = [candidates(np.concatenate([first, part]), most) for part in parts]
    assert join_pairs(*pairs).tolist() == expected(whole, most)


@given(entries=ENTRIES)
def test_each_file_wants_the_candidates_of_its_pairs(entries: list[tuple[int, int, int]]) -> None:
    pairs = candidates(packed(entries), MOST_CANDIDATES)
    wanted = set(wanted_by(pairs).tolist())
    firsts = [positions(file, np.zeros(1, np.int64))[0] for file in file_of(pairs["position"])]
    assert wanted == {(w, int(f)) for w, f in zip(pairs["witness"].tolist(), firsts, strict=True)}


BLOCK = Block(file=3, index=12, blocks=13, first_group=0, stop_group=0, first_row=0, bytes=9)
ROWS = np.arange(0, 40, 4)
TABLE = drops(ROWS, 1, ["min_chars", "max_chars"] * 5)
KEYS = key_records(np.arange(10, dtype=np.uint64) % 7, positions(3, ROWS))
MARKS = mark(KEYS)


@pytest.fixture
def stage(tmp_path: Path) -> StageFiles:
    """A stage with one file of each kind."""
    stage = StageFiles(Checkpoints(open_storage(str(tmp_path)), "f" * 64), 0)
    stage.write_block(BLOCK, [TABLE], KEYS)
    stage.write_marks("00001-of-00004", [("marks", MARKS), ("firsts", MARKS[:0])])
    stage.write_marked(3, TABLE)
    return stage


def test_what_was_written_is_found_again(stage: StageFiles) -> None:
    found = stage.read_block(BLOCK)
    assert found is not None
    assert found.keys == len(KEYS)
    assert stage.decided(BLOCK)[0].equals(TABLE)
    places = stage.read_marks("00001-of-00004")
    assert places is not None
    assert [(kind, place.start, place.stop) for kind, place in places.items()] == [
        ("marks", 0, MARKS.nbytes),
        ("firsts", MARKS.nbytes, MARKS.nbytes),
    ]
    assert stage.marked(3).equals(TABLE)


def test_a_block_of_which_nothing_is_decided_or_left_is_found_again(stage: StageFiles) -> None:
    other = Block(file=3, index=0, blocks=13, first_group=0, stop_group=0, first_row=0, bytes=9)
    assert stage.read_block(other) is None
    nothing: list[pa.Table] = []
    stage.write_block(other, nothing, np.empty(0, key_dtype(64)))
    assert stage.judged(other).keys == 0
    stage.write_block(other, nothing, None)
    assert stage.read_block(other) == stage.judged(other)


def test_decisions_that_vanish_while_they_are_needed_are_a_sentence(
    stage: StageFiles, tmp_path: Path
) -> None:
    (path,) = tmp_path.glob("checkpoints/*/marked/0/*")
    path.unlink()
    with pytest.raises(OutputError, match=r"is missing or damaged.* Run the same command again"):
        stage.marked(3)
