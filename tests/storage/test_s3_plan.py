"""The parts of a multipart upload: pure arithmetic, with the limits of S3."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from fineshards.storage.s3_plan import (
    LEAST_BYTES,
    MOST_COPIED,
    MOST_PARTS,
    PlannedPart,
    Segment,
    plan_parts,
)

MIB = 1 << 20

# Small and large ones, and those about the least size of a part.
sizes = (
    st.integers(0, 200)
    | st.integers(LEAST_BYTES - 200, LEAST_BYTES + 200)
    | st.integers(0, 200 * MIB)
    | st.integers(0, MOST_COPIED)
)
segments = st.lists(st.builds(Segment, sizes, st.booleans()), max_size=40)


def check(planned: list[Segment], parts: list[PlannedPart], cut: bool) -> None:
    total = sum(segment.size for segment in planned)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert (parts[-1].stop if parts else 0) == total
    assert len(parts) <= MOST_PARTS
    assert all(part.stop - part.start >= LEAST_BYTES for part in parts[:-1])
    assert all(0 < part.stop - part.start <= MOST_COPIED for part in parts)
    ends = list(accumulate(segment.size for segment in planned))
    for part in parts:
        if part.copied is not None:
            segment, end = planned[part.copied], ends[part.copied]
            assert segment.copyable
            # It is the rest of its object, and the whole of it if nothing may be cut.
            assert end - segment.size <= part.start < part.stop == end
            assert cut or part.start == end - segment.size
            assert part.stop - part.start >= LEAST_BYTES


@given(segments, st.booleans())
def test_parts_cover_the_file_exactly_and_keep_the_limits(
    planned: list[Segment], cut: bool
) -> None:
    check(planned, plan_parts(planned, cut), cut)


@settings(max_examples=10)
@given(st.integers(2000, 40_000), st.integers(4, 8), st.booleans())
def test_thousands_of_segments_keep_the_limits(count: int, mib: int, cut: bool) -> None:
    planned = [Segment(128, False), *[Segment(mib * MIB, True)] * count]
    check(planned, plan_parts(planned, cut), cut)


def test_a_header_takes_what_it_lacks_from_the_first_block() -> None:
    planned = [Segment(128, False), Segment(30 * MIB, True), Segment(30 * MIB, True)]
    assert plan_parts(planned) == [
        PlannedPart(0, 5 * MIB, None),
        PlannedPart(5 * MIB, 128 + 30 * MIB, 1),
        PlannedPart(128 + 30 * MIB, 128 + 60 * MIB, 2),
    ]
    assert plan_parts(planned, cut=False) == [
        PlannedPart(0, 128 + 30 * MIB, None),
        PlannedPart(128 + 30 * MIB, 128 + 60 * MIB, 2),
    ]


def test_whole_blocks_are_copied_after_a_cut_one_that_is_large_enough() -> None:
    planned = [Segment(128, False), Segment(20 * MIB, False), *[Segment(30 * MIB, True)] * 9]
    parts = plan_parts(planned)
    assert [part.copied for part in parts] == [None, *range(2, 11)]
    assert parts == plan_parts(planned, cut=False)


def test_small_blocks_are_sent_together() -> None:
    planned = [Segment(128, False), *[Segment(MIB, True)] * 100]
    parts = plan_parts(planned)
    assert [part.copied for part in parts] == [None, None]
    assert abs(parts[0].stop - 50 * MIB) <= 128


def test_an_empty_file_has_no_parts() -> None:
    assert plan_parts([]) == plan_parts([Segment(0, True)]) == []
