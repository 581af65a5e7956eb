"""Planned ranges: few requests, each byte fetched once, failures where they belong."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.storage import ranges as planned_ranges
from fineshards.storage.ranges import LARGEST_HOLE, PIECE_BYTES, RangeReader, pieces_of

MIB = 1 << 20
# The distance of a start from the stop before it, and the size of a range.
GAPS = st.lists(
    st.tuples(st.sampled_from([0, 1, MIB, MIB + 1, 3 * MIB]), st.integers(1, 40 * MIB)), max_size=8
)


def ranges_of(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    ranges, at = [], 0
    for hole, size in gaps:
        ranges.append((at + hole, at + hole + size))
        at += hole + size
    return ranges


@given(GAPS)
def test_pieces_cover_what_is_wanted_and_no_large_hole(gaps: list[tuple[int, int]]) -> None:
    ranges = ranges_of(gaps)
    pieces = pieces_of(reversed(ranges))
    assert all(one.stop <= two.start for one, two in pairwise(pieces))
    assert all(0 < piece.stop - piece.start <= PIECE_BYTES for piece in pieces)
    assert sum(piece.left for piece in pieces) == sum(stop - start for start, stop in ranges)
    for piece in pieces:
        inside = [(max(a, piece.start), min(b, piece.stop)) for a, b in ranges]
        assert piece.left == sum(stop - start for start, stop in inside if start < stop)
    fetched = sum(piece.stop - piece.start for piece in pieces)
    holes = [hole for (hole, _), _ in zip(gaps[1:], gaps, strict=False) if hole <= LARGEST_HOLE]
    assert fetched == sum(piece.left for piece in pieces) + sum(holes)
    # As few as that: each run without a large hole has no more than it needs.
    runs = [0, *[n for n, (hole, _) in enumerate(gaps) if n and hole > LARGEST_HOLE], len(gaps)]
    needed = 0
    for first, stop in pairwise(runs):
        if first < stop:
            needed += -(-(ranges[stop - 1][1] - ranges[first][0]) // PIECE_BYTES)
    assert len(pieces) == needed


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_ranges, "PIECE_BYTES", 100)
    monkeypatch.setattr(planned_ranges, "LARGEST_HOLE", 10)


@pytest.mark.usefixtures("small_pieces")
def test_each_byte_is_fetched_once_although_columns_are_read_in_turns() -> None:
    content = bytes(number % 251 for number in range(3000))
    asked: list[tuple[int, int]] = []
    lock = threading.Lock()

    def download(start: int, stop: int) -> bytes:
        with lock:
            asked.append((start, stop))
        return content[start:stop]

    with RangeReader(len(content), download) as file:
        file.plan([(0, 1000), (1005, 1205), (2000, 2900)])
        for step in range(20):
            for start, size in ((0, 50), (1005, 10), (2000, 45)):
                file.seek(start + step * size)
                assert file.read(size) == content[start + step * size :][:size]
        assert sum(stop - start for start, stop in asked) == 2105
        assert len(asked) == len(set(asked)) == len(pieces_of([(0, 1205), (2000, 2900)]))
        # Read again, and outside: exactly what is asked for.
        asked.clear()
        for start, size in ((100, 7), (1500, 9), (990, 30)):
            file.seek(start)
            assert file.read(size) == content[start : start + size]
        assert asked == [(100, 107), (1500, 1509), (990, 1020)]


@pytest.mark.usefixtures("small_pieces")
def test_a_failed_request_is_raised_where_its_bytes_are_read() -> None:
    def download(start: int, stop: int) -> bytes:
        if start >= 200:
            raise OSError(f"no bytes from {start} on")
        return bytes(stop - start)

    with RangeReader(400, download) as file:
        file.plan([(0, 400)])
        assert file.read(200) == bytes(200)
        with pytest.raises(OSError, match="from 200 on"):
            file.read(50)
        assert file.tell() == 200


def test_ranges_beyond_the_file_are_not_planned() -> None:
    with RangeReader(10, lambda start, stop: bytes(stop - start)) as file:
        file.plan([(0, 4), (8, 12)])
        assert file.read(4) == bytes(4)
