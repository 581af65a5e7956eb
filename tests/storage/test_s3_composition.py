"""Composition on s3://: the store copies whole blocks, and every copy is proven."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
from support.blocks_to_compose import HEADER, NAME, OBJECT, block_name, parts_of, write_blocks
from support.faulty_proxy import CUT_DOWNLOAD, CUT_UPLOAD, LOSE_ANSWER
from support.s3_proxy import S3Proxy

from fineshards.errors import OutputError
from fineshards.storage import s3_multipart, s3_plan
from fineshards.storage.s3 import S3Storage

pytestmark = pytest.mark.cloud

MIB = 1 << 20
SIZES = [6 * MIB, MIB, 6 * MIB + 1, 7 * MIB]

CREATE, COPY, SEND = "^POST .*npy.*uploads", "^PUT .*npy.*partNumber=2", "^PUT .*npy.*partNumber=1"
COMPLETE, ABORT = "^POST .*npy.*uploadId", "^DELETE .*npy.*uploadId"


@pytest.fixture
def storage(s3: S3Proxy) -> S3Storage:
    return S3Storage("s3://data/out")


def check(s3: S3Proxy, expected: bytes) -> None:
    """The file is there, and no part of another upload."""
    assert s3.content("data", OBJECT) == expected
    assert [name for name in s3.names("data") if "/blocks/" not in name] == [OBJECT]
    assert s3.uploads("data") == []


def downloaded(s3: S3Proxy) -> int:
    return sum(request.received for request in s3.requests if "GET /data/" in request.line)


def uploaded(s3: S3Proxy) -> int:
    return sum(request.sent for request in s3.requests if request.line.startswith("PUT"))


@pytest.mark.parametrize(
    ("sizes", "cut_front", "cut_end", "copies"),
    [
        ([6 * MIB], 0, 0, 0),  # what is left of it after five MiB is too small
        ([11 * MIB], 0, 0, 1),
        (SIZES, 0, 0, 2),
        (SIZES, 3, 5, 1),
        ([6 * MIB] * 4, 3, 0, 3),
        ([6 * MIB] * 4, 3, 5, 2),
        ([MIB, 12 * MIB, 100, 12 * MIB, 1], 0, 0, 2),
        ([100, 200, 300], 1, 1, 0),
    ],
)
def test_a_composed_file_has_the_right_bytes_and_checksum(
    s3: S3Proxy,
    storage: S3Storage,
    sizes: list[int],
    cut_front: int,
    cut_end: int,
    copies: int,
) -> None:
    joined = b"".join(write_blocks(storage, sizes))
    expected = HEADER + joined[cut_front : len(joined) - cut_end]
    s3.requests.clear()
    checksum = storage.compose(NAME, HEADER, parts_of(sizes, cut_front, cut_end))
    assert checksum == google_crc32c.value(expected)
    check(s3, expected)
    copied = [r for r in s3.requests if "partNumber" in r.line and r.sent == 0]
    assert len(copied) == copies
    # What is not copied is downloaded and sent, and nothing else.
    sent = uploaded(s3)
    assert downloaded(s3) <= sent <= len(expected)
    assert copies == 0 or len(expected) - sent >= copies * 5 * MIB
    # A second attempt finds the same object.
    assert storage.compose(NAME, HEADER, parts_of(sizes, cut_front, cut_end)) == checksum
    check(s3, expected)


FOUR = [6 * MIB] * 4


@pytest.mark.parametrize("fault", [500, 503, LOSE_ANSWER])
@pytest.mark.parametrize("pattern", [CREATE, COPY, SEND, COMPLETE])
def test_every_request_of_a_composition_may_fail(
    s3: S3Proxy, storage: S3Storage, pattern: str, fault: int | str
) -> None:
    joined = b"".join(write_blocks(storage, FOUR))
    rule = s3.fail(pattern, fault)
    storage.compose(NAME, HEADER, parts_of(FOUR, 1, 1))
    assert rule.hits == 1
    assert s3.content("data", OBJECT) == HEADER + joined[1:-1]
    # An upload whose name was lost cannot be given up; a lifecycle rule deletes it.
    assert len(s3.uploads("data")) == (pattern == CREATE and fault == LOSE_ANSWER)


@pytest.mark.parametrize(
    ("pattern", "fault"), [("^GET", CUT_DOWNLOAD), (SEND, CUT_UPLOAD), ("^HEAD", 503), (COPY, 409)]
)
def test_broken_transfers_of_a_composition_are_repeated(
    s3: S3Proxy, storage: S3Storage, pattern: str, fault: int | str
) -> None:
    joined = b"".join(write_blocks(storage, FOUR))
    rule = s3.fail(pattern, fault)
    storage.compose(NAME, HEADER, parts_of(FOUR, 1, 1))
    assert rule.hits == 1
    check(s3, HEADER + joined[1:-1])


@pytest.mark.parametrize("pattern", [CREATE, COPY, SEND, COMPLETE])
def test_an_upload_that_fails_is_given_up(s3: S3Proxy, storage: S3Storage, pattern: str) -> None:
    write_blocks(storage, FOUR)
    s3.fail(pattern, 403, range(1, 100))
    with pytest.raises(OutputError, match=rf"^{storage.path(NAME)} cannot be composed: no permi"):
        storage.compose(NAME, HEADER, parts_of(FOUR, 1, 1))
    assert s3.metadata("data", OBJECT) is None
    assert s3.uploads("data") == []


def test_a_copy_that_is_not_proven_goes_through_the_worker(s3: S3Proxy, storage: S3Storage) -> None:
    """Neither by a checksum, which the store hides, nor by an MD5: Seaweed gives none."""
    joined = b"".join(write_blocks(storage, FOUR))
    s3.refuses_checked_copies = s3.hides_checksums = True
    storage.compose(NAME, HEADER, parts_of(FOUR))
    check(s3, HEADER + joined)
    # The next one goes there at once.
    s3.requests.clear()
    storage.compose("train/train_0001.npy", HEADER, parts_of(FOUR))
    assert s3.content("data", "out/train/train_0001.npy") == HEADER + joined
    assert uploaded(s3) == len(HEADER + joined)
    assert s3.uploads("data") == []


@pytest.mark.parametrize("shows", ["checksum", "nothing"])
def test_a_copy_of_other_bytes_is_noticed(s3: S3Proxy, storage: S3Storage, shows: str) -> None:
    """The block's content is not what its checksum says: a copy of it must never be taken."""
    joined = b"".join(write_blocks(storage, FOUR))
    s3.damaged = f"out/{block_name(2)}"
    s3.hides_checksums = shows == "nothing"
    storage.compose(NAME, HEADER, parts_of(FOUR))
    check(s3, HEADER + joined)


def test_an_existing_object_with_other_content_is_an_error_with_both_checksums(
    s3: S3Proxy, storage: S3Storage
) -> None:
    write_blocks(storage, FOUR)
    storage.write(NAME, b"other")
    with pytest.raises(
        OutputError, match=r"with other content: it has 5 bytes with crc32c \S{8}, this job has"
    ):
        storage.compose(NAME, HEADER, parts_of(FOUR))
    check(s3, b"other")


def replace(storage: S3Storage) -> None:
    storage.delete(block_name(2))
    storage.write(block_name(2), bytes(FOUR[2]))


@pytest.mark.parametrize(
    ("change", "state"),
    [(replace, "now its ETag is"), (lambda s: s.delete(block_name(2)), "now it is deleted")],
)
def test_a_block_that_changes_during_composition_is_named(
    s3: S3Proxy, storage: S3Storage, change: Callable[[S3Storage], None], state: str
) -> None:
    write_blocks(storage, FOUR)
    s3.fail(CREATE, lambda: change(S3Storage("s3://data/out")))
    with pytest.raises(
        OutputError, match=rf"^s3://data/out/{block_name(2)} changed while {NAME} .* {state}"
    ):
        storage.compose(NAME, HEADER, parts_of(FOUR))
    assert s3.metadata("data", OBJECT) is None
    assert s3.uploads("data") == []


@pytest.mark.parametrize("committed", [False, True])
def test_a_late_attempt_succeeds_and_changes_nothing(
    s3: S3Proxy, storage: S3Storage, committed: bool
) -> None:
    """Even if the job has ended meanwhile and its token blocks are deleted."""
    joined = b"".join(write_blocks(storage, FOUR))
    arrived, released = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        assert released.wait(60)

    s3.fail(COPY if committed else COMPLETE, hold)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(storage.compose, NAME, HEADER, parts_of(FOUR, 1, 1))
        assert arrived.wait(60)
        checksum = storage.compose(NAME, HEADER, parts_of(FOUR, 1, 1))
        if committed:
            storage.delete_folder("checkpoints")
        version = storage.version(NAME)
        released.set()
        assert slow.result() == checksum
    assert storage.version(NAME) == version
    check(s3, HEADER + joined[1:-1])


def test_concurrent_attempts_all_succeed(s3: S3Proxy, storage: S3Storage) -> None:
    joined = b"".join(write_blocks(storage, FOUR))
    with ThreadPoolExecutor(3) as pool:
        attempts = [
            pool.submit(storage.compose, NAME, HEADER, parts_of(FOUR, 1, 1)) for _ in range(3)
        ]
        assert len({attempt.result() for attempt in attempts}) == 1
    check(s3, HEADER + joined[1:-1])


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads of 8 MiB or more are sent in parts of about 6 MiB."""
    monkeypatch.setattr("fineshards.storage.s3._PUT_BYTES", 8 * MIB)
    monkeypatch.setattr(s3_plan, "_MOST_SENT", 6 * MIB)


LARGE = random.Random(7).randbytes(13 * MIB)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("pattern", "fault"),
    [(SEND, CUT_UPLOAD), (SEND, LOSE_ANSWER), (COMPLETE, LOSE_ANSWER), (CREATE, 503)],
)
def test_a_large_file_is_sent_in_parts(
    s3: S3Proxy, storage: S3Storage, checked: bool, pattern: str, fault: int | str
) -> None:
    if not checked:
        s3_multipart._failed.add((s3.address, "data", "send", True))
    rule = s3.fail(pattern, fault)
    checksum = storage.write(NAME, LARGE)
    assert rule.hits == 1
    assert checksum == google_crc32c.value(LARGE)
    check(s3, LARGE)
    assert s3.count("^PUT .*npy.*partNumber") >= 2
    with pytest.raises(OutputError, match="already exists with other content"):
        storage.write(NAME, LARGE[:-1])
    storage.replace(NAME, LARGE[1:], storage.version(NAME))
    check(s3, LARGE[1:])
