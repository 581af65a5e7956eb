"""Checksums: combined by arithmetic, they equal google_crc32c of the joined bytes."""

from io import BytesIO

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.storage.checksums import (
    checksum_from_base64,
    checksum_to_base64,
    crc32c_combine,
    file_checksum,
)


@given(st.lists(st.binary(max_size=300), max_size=12))
def test_checksums_of_parts_combine_to_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    checksum = 0
    for part in parts:
        checksum = crc32c_combine(checksum, google_crc32c.value(part), len(part))
    assert checksum == google_crc32c.value(b"".join(parts))


@given(st.binary(), st.binary(), st.binary())
def test_combining_is_associative(a: bytes, b: bytes, c: bytes) -> None:
    first, second, third = map(google_crc32c.value, (a, b, c))
    left = crc32c_combine(crc32c_combine(first, second, len(b)), third, len(c))
    right = crc32c_combine(first, crc32c_combine(second, third, len(c)), len(b) + len(c))
    assert left == right == google_crc32c.value(a + b + c)


@pytest.mark.parametrize("length", [1 << 20, (1 << 24) + 7])
def test_long_parts_combine(length: int) -> None:
    first, second = b"first" * 1000, bytes(length)
    combined = crc32c_combine(google_crc32c.value(first), google_crc32c.value(second), length)
    assert combined == google_crc32c.value(first + second)


def test_lengths_beyond_32_bits_combine() -> None:
    """Five gigabytes of zeros, as ten times half a gigabyte."""
    part, length = 0, 1 << 29
    for _ in range(1 << 9):
        part = google_crc32c.extend(part, bytes(1 << 20))
    whole = 0
    for _ in range(10):
        whole = crc32c_combine(whole, part, length)
    doubled, size = part, length
    for _ in range(3):
        doubled, size = crc32c_combine(doubled, doubled, size), size * 2
    assert size > 1 << 31
    assert crc32c_combine(doubled, crc32c_combine(part, part, length), 2 * length) == whole
    start = google_crc32c.value(b"start")
    assert crc32c_combine(start, whole, 10 * length) == crc32c_combine(
        crc32c_combine(start, doubled, size), crc32c_combine(part, part, length), 2 * length
    )


@given(st.binary(), st.binary())
def test_the_checksum_of_a_file_goes_on_from_what_is_before_it(before: bytes, rest: bytes) -> None:
    checksum = file_checksum(BytesIO(rest), google_crc32c.value(before))
    assert checksum == google_crc32c.value(before + rest)
    assert checksum_from_base64(checksum_to_base64(checksum)) == checksum
