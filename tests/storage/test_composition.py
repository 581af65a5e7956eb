"""Composition: the server joins whole objects, and only cut parts are downloaded and uploaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.blocks_to_compose import HEADER, NAME, OBJECT, block_name, parts_of, write_blocks
from support.faulty_proxy import CUT_DOWNLOAD, CUT_UPLOAD, LOSE_ANSWER, LeaveOut, Proxy

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY, FileRange
from fineshards.storage.gcs import GcsStorage

pytestmark = pytest.mark.cloud


@pytest.fixture
def storage(cloud: Proxy) -> GcsStorage:
    return GcsStorage("gs://data/out")


def other_objects(cloud: Proxy) -> list[str]:
    return [name for name in cloud.names("data") if "/blocks/" not in name]


@pytest.mark.parametrize(
    ("count", "cut_front", "cut_end"),
    [(1, 0, 0), (2, 3, 0), (31, 0, 0), (32, 0, 0), (32, 0, 5), (33, 3, 5), (65, 0, 5)],
)
def test_a_composed_file_has_the_right_bytes_and_checksum_and_leaves_no_components(
    cloud: Proxy, storage: GcsStorage, count: int, cut_front: int, cut_end: int
) -> None:
    sizes = [20 + number % 3 for number in range(count)]
    blocks = write_blocks(storage, sizes)
    joined = b"".join(blocks)
    expected = HEADER + joined[cut_front : len(joined) - cut_end]
    checksum = storage.compose(NAME, HEADER, parts_of(sizes, cut_front, cut_end))
    assert cloud.content("data", OBJECT) == expected
    assert checksum == google_crc32c.value(expected)
    assert other_objects(cloud) == [OBJECT]
    # A second attempt finds the same object, and looks at it once.
    cloud.requests.clear()
    assert storage.compose(NAME, HEADER, parts_of(sizes, cut_front, cut_end)) == checksum
    assert other_objects(cloud) == [OBJECT]
    assert cloud.count(f"^GET /storage/v1/b/data/o/{OBJECT}") == 1
    # Each component is deleted in the generation that was made.
    assert cloud.count("^DELETE") == cloud.count("^DELETE .*/unfinished/.*ifGenerationMatch=[1-9]")


def test_hundreds_of_small_parts_are_joined_without_moving_their_bytes(
    cloud: Proxy, storage: GcsStorage
) -> None:
    """A test shard is made of one small part per block."""
    sizes = [100 + number % 7 for number in range(321)]
    blocks = write_blocks(storage, sizes)
    expected = HEADER + b"".join(blocks)
    cloud.requests.clear()
    assert storage.compose(NAME, HEADER, parts_of(sizes)) == google_crc32c.value(expected)
    assert cloud.content("data", OBJECT) == expected
    assert other_objects(cloud) == [OBJECT]
    # The header and 321 parts: ten joins of 32, one of 2, and the last one of their results.
    assert cloud.count("/compose") == 12
    assert cloud.count("^POST /upload") == 1
    assert cloud.count("alt=media") == 0
    # Besides these: each part is looked up once, and each temporary component deleted.
    assert len(cloud.requests) == 12 + 1 + 321 + 12


def test_many_blocks_are_composed_in_several_levels(
    cloud: Proxy, storage: GcsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fineshards.storage.gcs_compose._MAX_COMPONENTS", 4)
    sizes = [3] * 33
    blocks = write_blocks(storage, sizes)
    expected = HEADER + b"".join(blocks)
    assert storage.compose(NAME, HEADER, parts_of(sizes)) == google_crc32c.value(expected)
    assert cloud.content("data", OBJECT) == expected
    # 34 components, then 9, of which the last is passed on as it is, then 3.
    assert cloud.count("/compose") == 9 + 2 + 1
    assert other_objects(cloud) == [OBJECT]


def test_only_the_cut_parts_are_transferred(cloud: Proxy, storage: GcsStorage) -> None:
    sizes = [100_000] * 10
    write_blocks(storage, sizes)
    cloud.requests.clear()
    storage.compose(NAME, HEADER, parts_of(sizes, cut_front=99_000, cut_end=98_000))
    downloads = [request for request in cloud.requests if "alt=media" in request.line]
    assert sum(request.received for request in downloads) == 1_000 + 2_000
    # Each upload carries some hundred bytes of metadata.
    uploads = [request for request in cloud.requests if "/upload/" in request.line]
    assert len(uploads) == 2
    assert 0 <= sum(request.sent for request in uploads) - (128 + 1_000 + 2_000) < 2_000
    assert (cloud.metadata("data", OBJECT) or {})["size"] == str(128 + 1_000 + 800_000 + 2_000)


def test_a_part_cut_on_both_sides_is_uploaded_without_composing(
    cloud: Proxy, storage: GcsStorage
) -> None:
    (block,) = write_blocks(storage, [1000])
    checksum = storage.compose(NAME, HEADER, [FileRange(block_name(0), 10, 990)])
    assert cloud.content("data", OBJECT) == HEADER + block[10:990]
    assert checksum == google_crc32c.value(HEADER + block[10:990])
    assert cloud.count("/compose") == 0


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_parts_of_any_blocks_compose(
    cloud: Proxy, storage: GcsStorage, data: st.DataObject
) -> None:
    blocks = write_blocks(storage, [5, 1, 40, 7, 13])
    parts = []
    for number in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=40)):
        start = data.draw(st.integers(0, len(blocks[number]) - 1))
        stop = data.draw(st.integers(start + 1, len(blocks[number])))
        whole = data.draw(st.booleans())
        bounds = (0, len(blocks[number])) if whole else (start, stop)
        parts.append((number, *bounds))
    storage.delete(NAME)
    expected = HEADER + b"".join(blocks[n][start:stop] for n, start, stop in parts)
    checksum = storage.compose(NAME, HEADER, [FileRange(block_name(n), a, b) for n, a, b in parts])
    assert cloud.content("data", OBJECT) == expected
    assert checksum == google_crc32c.value(expected)
    assert other_objects(cloud) == [OBJECT]


SIZES = [50] * 34


@pytest.mark.parametrize("fault", [408, 429, 503, LOSE_ANSWER])
@pytest.mark.parametrize("number", [1, 3], ids=["of a component", "of the file"])
def test_composing_is_retried(
    cloud: Proxy, storage: GcsStorage, fault: int | str, number: int
) -> None:
    blocks = write_blocks(storage, SIZES)
    rule = cloud.fail("/compose", fault, (number,))
    storage.compose(NAME, HEADER, parts_of(SIZES, 1, 1))
    assert rule.hits == 1
    assert cloud.content("data", OBJECT) == HEADER + b"".join(blocks)[1:-1]
    assert other_objects(cloud) == [OBJECT]


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("^POST /upload", CUT_UPLOAD),
        ("^POST /upload", LOSE_ANSWER),
        ("alt=media", CUT_DOWNLOAD),
        ("^DELETE", 503),
        ("^DELETE", LOSE_ANSWER),
        ("^GET", 503),
    ],
)
def test_every_request_of_a_composition_may_fail(
    cloud: Proxy, storage: GcsStorage, pattern: str, fault: int | str
) -> None:
    blocks = write_blocks(storage, SIZES)
    rule = cloud.fail(pattern, fault, (1, 3))
    storage.compose(NAME, HEADER, parts_of(SIZES, 1, 1))
    assert rule.hits
    assert cloud.content("data", OBJECT) == HEADER + b"".join(blocks)[1:-1]
    assert other_objects(cloud) == [OBJECT]


def test_answers_that_leave_out_sizes_and_checksums_are_asked_for(
    cloud: Proxy, storage: GcsStorage
) -> None:
    blocks = write_blocks(storage, SIZES)
    cloud.fail("^POST", LeaveOut(("size", "crc32c", "generation")), range(1, 100))
    storage.compose(NAME, HEADER, parts_of(SIZES, 1, 1))
    assert cloud.content("data", OBJECT) == HEADER + b"".join(blocks)[1:-1]
    assert other_objects(cloud) == [OBJECT]


@pytest.mark.parametrize("number", [1, 3])
def test_components_are_deleted_when_composing_fails(
    cloud: Proxy, storage: GcsStorage, number: int
) -> None:
    write_blocks(storage, SIZES)
    cloud.fail("/compose", 403, (number,))
    with pytest.raises(OutputError, match="cannot be composed: no permission"):
        storage.compose(NAME, HEADER, parts_of(SIZES, 1, 1))
    assert other_objects(cloud) == []


def test_components_that_cannot_be_deleted_do_not_affect_the_file(
    cloud: Proxy, storage: GcsStorage
) -> None:
    blocks = write_blocks(storage, SIZES)
    cloud.fail("^DELETE", 403, range(1, 100))
    storage.compose(NAME, HEADER, parts_of(SIZES, 1, 1))
    assert cloud.content("data", OBJECT) == HEADER + b"".join(blocks)[1:-1]
    assert all(
        name.startswith(f"out/{TEMPORARY}/") for name in other_objects(cloud) if name != OBJECT
    )


def test_an_existing_object_with_other_content_is_an_error_with_both_checksums(
    cloud: Proxy, storage: GcsStorage
) -> None:
    write_blocks(storage, SIZES)
    storage.write(NAME, b"other")
    with pytest.raises(
        OutputError, match=r"with other content: it has 5 bytes with crc32c \S{8}, this job has"
    ):
        storage.compose(NAME, HEADER, parts_of(SIZES))
    assert cloud.content("data", OBJECT) == b"other"
    assert other_objects(cloud) == [OBJECT]


def replace(storage: GcsStorage) -> None:
    storage.delete(block_name(3))
    storage.write(block_name(3), b"x" * SIZES[3])


@pytest.mark.parametrize(
    ("change", "state"),
    [(replace, "now its generation is"), (lambda s: s.delete(block_name(3)), "now it is deleted")],
)
def test_a_block_that_changes_during_composition_is_named(
    cloud: Proxy, storage: GcsStorage, change: Callable[[GcsStorage], None], state: str
) -> None:
    write_blocks(storage, SIZES)
    cloud.fail("/compose", lambda: change(GcsStorage("gs://data/out")))
    with pytest.raises(
        OutputError, match=rf"^gs://data/out/{block_name(3)} changed while {NAME} .* {state}"
    ):
        storage.compose(NAME, HEADER, parts_of(SIZES))
    assert other_objects(cloud) == []


@pytest.mark.parametrize("stored", [b"", b"1" * 49])
def test_a_block_that_is_too_short_is_named(
    cloud: Proxy, storage: GcsStorage, stored: bytes
) -> None:
    write_blocks(storage, SIZES)
    storage.delete(block_name(3))
    storage.write(block_name(3), stored)
    with pytest.raises(
        OutputError, match=f"{block_name(3)} has {len(stored)} bytes, expected at least 50 bytes"
    ):
        storage.compose(NAME, HEADER, parts_of(SIZES))
    assert other_objects(cloud) == []


def test_a_block_of_another_storage_class_is_named_with_a_workaround(
    cloud: Proxy, storage: GcsStorage
) -> None:
    write_blocks(storage, SIZES)
    cloud.storage_classes[f"out/{block_name(3)}"] = "NEARLINE"
    with pytest.raises(OutputError) as caught:
        storage.compose(NAME, HEADER, parts_of(SIZES))
    assert str(caught.value).startswith(
        f"gs://data/{OBJECT} cannot be composed from gs://data/out/{block_name(3)}, whose storage "
        "class is NEARLINE, not STANDARD: "
    )
    assert "--assembly stream" in str(caught.value)
    assert other_objects(cloud) == []


def test_concurrent_attempts_all_succeed(cloud: Proxy, storage: GcsStorage) -> None:
    blocks = write_blocks(storage, SIZES)
    with ThreadPoolExecutor(3) as pool:
        attempts = [
            pool.submit(storage.compose, NAME, HEADER, parts_of(SIZES, 1, 1)) for _ in range(3)
        ]
        assert len({attempt.result() for attempt in attempts}) == 1
    assert cloud.content("data", OBJECT) == HEADER + b"".join(blocks)[1:-1]
    assert other_objects(cloud) == [OBJECT]


@pytest.mark.parametrize("committed", [False, True])
def test_a_late_attempt_succeeds_and_changes_nothing(
    cloud: Proxy, storage: GcsStorage, committed: bool
) -> None:
    """Even if the job has ended meanwhile and its token blocks are deleted."""
    blocks = write_blocks(storage, SIZES)
    arrived, released = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        assert released.wait(60)

    # The last compose request, which creates the file.
    cloud.fail("/compose", hold, (3,))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(storage.compose, NAME, HEADER, parts_of(SIZES, 1, 1))
        assert arrived.wait(60)
        checksum = storage.compose(NAME, HEADER, parts_of(SIZES, 1, 1))
        if committed:
            storage.delete_folder("checkpoints")
        generation = (cloud.metadata("data", OBJECT) or {})["generation"]
        released.set()
        assert slow.result() == checksum
    assert (cloud.metadata("data", OBJECT) or {})["generation"] == generation
    assert cloud.content("data", OBJECT) == HEADER + b"".join(blocks)[1:-1]
    assert other_objects(cloud) == [OBJECT]
