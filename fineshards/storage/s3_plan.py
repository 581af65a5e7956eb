"""The parts of a multipart upload: bytes that are sent, and ranges that the store copies.

A part has at least 5 MiB, except for the last one, and an upload at most 10,000 parts.
https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LEAST_BYTES = 5 << 20
MOST_PARTS = 10_000
MOST_COPIED = 5 << 30
# Of a part that is sent: a broken connection costs no more.
_MOST_SENT = 64 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the file to be made. copyable: whether it is an object that can be copied."""

    size: int
    copyable: bool


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """Bytes `[start, stop)` of the file. copied: the number of the segment they lie in, or None."""

    start: int
    stop: int
    copied: int | None


def plan_parts(segments: Sequence[Segment], cut: bool = True) -> list[PlannedPart]:
    """The parts of a file that consists of these segments, in order.

    Whatever is too small for a part of its own is sent together with what is beside it. cut:
    whether a part of an object may be sent so that the rest can be copied; otherwise an object is
    copied whole or sent whole.
    """
    total = sum(segment.size for segment in segments)
    # So that there are at most MOST_PARTS; the last one may be smaller.
    least = max(LEAST_BYTES, -(-total // (MOST_PARTS - 1)))
    most_sent = max(_MOST_SENT, 2 * least)
    parts: list[PlannedPart] = []
    sent = position = 0  # the file is planned up to `sent`
    for number, segment in enumerate(segments):
        begin, position = position, position + segment.size
        if not segment.copyable:
            continue
        if sent < begin < sent + least:
            if not cut:
                continue
            begin = sent + least
        if position - begin >= least:
            parts += _split(sent, begin, most_sent)
            parts.append(PlannedPart(begin, position, number))
            sent = position
    return [*parts, *_split(sent, total, most_sent)]


def _split(start: int, stop: int, most: int) -> Iterator[PlannedPart]:
    """A range to send, in as few parts as hold it, of about one size."""
    count = -(-(stop - start) // most)
    for number in range(count):
        first, last = (start + (stop - start) * n // count for n in (number, number + 1))
        yield PlannedPart(first, last, None)
