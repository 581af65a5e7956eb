"""Storage on gs:// and s3:// over a failing network: retries, few requests, whole objects."""

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.checkout import ROOT
from support.damage import checksum
from support.faulty_proxy import (
    CUT_DOWNLOAD,
    CUT_UPLOAD,
    LOSE_ANSWER,
    LeaveOut,
    LeaveOutZeros,
    Proxy,
)

from fineshards.errors import OutputError
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.job.records import Block
from fineshards.shards.ledger import beginnings
from fineshards.sources.files import find_files
from fineshards.storage.base import FileRange, Storage
from fineshards.storage.checksums import checksum_to_base64
from fineshards.storage.open import open_storage
from fineshards.storage.ranges import RangeReader

pytestmark = pytest.mark.cloud

# The small one is sent in one request, the large one (over 8 MiB) in a resumable upload.
SIZES = {"small": 100_000, "large": 9 << 20}
NAME = "train/train_0000.npy"
OBJECT = f"out/{NAME}"
EMPTY, FULL = "train/a.jsonl", "train/b.jsonl"


@pytest.fixture
def cloud(either: Proxy) -> Proxy:
    """Either storage server; with `on_gs`, the one of gs://."""
    return either


on_gs = pytest.mark.parametrize("either", ["gs"], indirect=True)


@pytest.fixture
def storage(cloud: Proxy) -> Storage:
    return open_storage(f"{cloud.scheme}://data/out")


def content_of(size: str) -> bytes:
    return random.Random(size).randbytes(SIZES[size])


@on_gs
@pytest.mark.parametrize(
    ("size", "method"), [("small", "POST"), ("large", "POST"), ("large", "PUT")]
)
@pytest.mark.parametrize("fault", [408, 429, 503, CUT_UPLOAD, LOSE_ANSWER])
def test_an_upload_is_retried(
    cloud: Proxy, storage: Storage, size: str, method: str, fault: int | str
) -> None:
    rule = cloud.fail(f"^{method} /upload", fault)
    storage.write(NAME, content_of(size))
    assert rule.hits == 1
    assert cloud.names("data") == [OBJECT]
    assert cloud.content("data", OBJECT) == content_of(size)


@on_gs
def test_an_upload_starts_again_after_the_server_has_lost_it(
    cloud: Proxy, storage: Storage
) -> None:
    cloud.fail("^PUT", 410)
    storage.write(NAME, content_of("large"))
    assert cloud.count("^POST /upload") == 2
    assert cloud.content("data", OBJECT) == content_of("large")


@pytest.mark.parametrize("fault", [408, 429, 503, CUT_DOWNLOAD, LOSE_ANSWER])
def test_a_download_is_retried(cloud: Proxy, storage: Storage, fault: int | str) -> None:
    content = content_of("large")
    storage.write(NAME, content)
    rule = cloud.fail(cloud.download, fault, (1, 3))
    with storage.open(NAME, 1 << 20) as opened:
        opened.seek(1_000_000)
        assert opened.read(3_000_000) == content[1_000_000:4_000_000]
        assert opened.read() == content[4_000_000:]
    assert rule.hits == 2


def test_every_request_of_an_assembled_file_may_fail(cloud: Proxy, storage: Storage) -> None:
    """The bytes of blocks pass through this process, whose checksum the server confirms."""
    blocks = {f"blocks/{number}": content_of("large") for number in range(2)}
    for name, content in blocks.items():
        storage.write(name, content)
    parts = [FileRange("blocks/0", 5, 9 << 20), FileRange("blocks/1", 0, 1 << 20)]
    expected = b"h" * 128 + content_of("large")[5:] + content_of("large")[: 1 << 20]
    faults = [(cloud.download, CUT_DOWNLOAD), (cloud.download, 503), (cloud.upload, CUT_UPLOAD)]
    for pattern, fault in [*faults, (cloud.upload, LOSE_ANSWER)]:
        cloud.fail(pattern, fault)
    assert checksum_to_base64(storage.assemble(NAME, b"h" * 128, parts)) == checksum(expected)
    assert all(rule.hits for rule in cloud.rules)
    assert cloud.content("data", OBJECT) == expected
    assert cloud.names("data") == ["out/blocks/0", "out/blocks/1", OBJECT]


def test_a_small_file_is_read_in_one_request(cloud: Proxy, storage: Storage) -> None:
    storage.write(NAME, b"content")
    before = len(cloud.requests)
    assert storage.read(NAME) == b"content"
    assert storage.read_if_there(NAME) == b"content"
    assert storage.read_if_there("other") is None
    assert len(cloud.requests) - before == 3


def test_large_reads_take_few_requests(cloud: Proxy, storage: Storage) -> None:
    storage.write(NAME, content_of("large"))
    with storage.open(NAME, 4 << 20) as opened:
        found = b"".join(iter(lambda: opened.read(1 << 20), b""))
    assert found == content_of("large")
    assert cloud.count(cloud.download) == 3


@pytest.mark.parametrize("fault", [503, LOSE_ANSWER])
@pytest.mark.parametrize("what", ["size", "entries", "names", "delete", "delete_folder"])
def test_other_requests_are_retried(
    cloud: Proxy, storage: Storage, fault: int | str, what: str
) -> None:
    for name in ("a", "b"):
        storage.write(f"train/{name}", b"12345")
    rule = cloud.fail("^GET|^DELETE|^HEAD", fault, (1, 3))
    if what == "size":
        assert [storage.size(f"train/{name}") for name in "abc"] == [5, 5, None]
    elif what == "entries":
        assert sorted(entry.name for entry in storage.entries("train")) == ["train/a", "train/b"]
    elif what == "names":
        assert list(storage.names("tra")) == ["train/"]
    elif what == "delete":
        storage.delete("train/a")
        assert cloud.names("data") == ["out/train/b"]
    else:
        storage.delete_folder("train")
        assert cloud.names("data") == []
    assert rule.hits


def test_retries_end_with_an_error_that_names_the_object(
    cloud: Proxy, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fineshards.storage.retries.RETRY_SECONDS", 2.0)
    cloud.fail(cloud.upload, 503, range(1, 100))
    with pytest.raises(
        OutputError, match=rf"^{cloud.scheme}://data/{OBJECT} cannot be written: .*503.*again"
    ):
        storage.write(NAME, b"content")
    assert cloud.names("data") == []


def test_an_existing_object_with_other_content_is_an_error_with_both_checksums(
    cloud: Proxy, storage: Storage
) -> None:
    storage.write(NAME, b"first")
    storage.write(NAME, b"first")
    with pytest.raises(OutputError) as caught:
        storage.write(NAME, b"other")
    assert str(caught.value).startswith(f"{storage.path(NAME)} already exists with other content")
    for content in (b"first", b"other"):
        storage.write(content.decode(), content)
        assert f"crc32c {checksum(content)}" in str(caught.value)
    assert cloud.content("data", OBJECT) == b"first"


def test_a_late_attempt_succeeds_and_changes_nothing(cloud: Proxy, storage: Storage) -> None:
    arrived, released = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        assert released.wait(60)

    cloud.fail(cloud.upload, hold)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(storage.write, NAME, b"content")
        assert arrived.wait(60)
        storage.write(NAME, b"content")
        version = storage.version(NAME)
        released.set()
        slow.result()
    assert storage.version(NAME) == version
    assert cloud.names("data") == [OBJECT]


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    cloud: Proxy, storage: Storage
) -> None:
    storage.write(NAME, content_of("large"))
    with storage.open(NAME, 1 << 20) as opened:
        opened.read(1 << 20)
        storage.delete(NAME)
        storage.write(NAME, bytes(SIZES["large"]))
        with pytest.raises(
            OutputError,
            match=rf"^{cloud.scheme}://data/{OBJECT} was changed or deleted while it was read",
        ):
            opened.read()


def test_a_writer_killed_during_an_upload_creates_nothing(cloud: Proxy, storage: Storage) -> None:
    program = (
        "from fineshards.storage.open import open_storage\n"
        f"open_storage({storage.root!r}).write({NAME!r}, bytes({9 << 20}))\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
    )

    def kill() -> None:
        writer.kill()
        raise ConnectionError

    # It is killed in the middle of the upload, when it retries. The large one on gs:// is sent by
    # PUT, after a POST.
    gs = cloud.scheme == "gs"
    rule = cloud.fail("^PUT" if gs else cloud.upload, CUT_UPLOAD)
    cloud.fail(cloud.upload, kill, (2,) if gs else (1,))
    assert writer.wait(60) == -signal.SIGKILL
    assert rule.hits == 1
    storage.write(NAME, b"second attempt")
    assert cloud.content("data", OBJECT) == b"second attempt"


def test_many_objects_are_deleted_over_kept_connections(cloud: Proxy, storage: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: storage.write(f"a/{n % 7}/{n}", b""), range(200)))
    storage.write("ab", b"")
    before = cloud.connections
    storage.delete_folder("a")
    assert cloud.names("data") == ["out/ab"]
    assert cloud.count("^DELETE .*out/a/") == 200
    if cloud.scheme == "gs":
        assert cloud.count("^DELETE .*ifGenerationMatch=[1-9]") == 200
    assert cloud.connections - before <= 2 * 32 + 2


def test_checkpoints_of_many_files_are_listed_and_read_side_by_side(
    cloud: Proxy, storage: Storage
) -> None:
    checkpoints = Checkpoints(storage, "f" * 64)
    files = (0, 99, 100, 101, 999, 1000, 9999, 12_999)
    for file in files:
        checkpoints.write_blocks(file, [Block(file, 0, 1, 0, 0, 0, bytes=9)])
    folder = f"{checkpoints.folder}/files"
    found = list(storage.entries_by_beginning(folder, beginnings(13_000)))
    assert len(beginnings(13_000)) == 130
    by_name = {entry.name: (entry.size, entry.modified) for entry in storage.entries(folder)}
    assert {entry.name: (entry.size, entry.modified) for entry in found} == by_name
    assert len(found) == len(files)

    read = checkpoints.read_new_blocks([0, 1])
    assert {file: blocks[0].file for file, blocks in read.items()} == {n: n for n in files[1:]}
    before = len(cloud.requests)
    assert checkpoints.read_new_blocks(files) == {}
    assert len(cloud.requests) == before + 1
    if cloud.scheme == "gs":
        assert cloud.count("fields=items") > 130


@pytest.mark.parametrize("files", [0, 1, 100, 101, 12_345, 100_000, 100_001, 1_200_000])
def test_each_file_has_one_beginning(files: int) -> None:
    known = beginnings(files)
    for file in {0, 99, 100, 9_999, 10_000, 99_999, 100_000, files - 1} & set(range(files)):
        assert sum(f"{file:05d}-00000".startswith(each) for each in known) == 1


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("answer", [None, LOSE_ANSWER])
def test_a_late_delete_keeps_what_was_written_since(
    cloud: Proxy, storage: Storage, folder: bool, answer: str | None
) -> None:
    """Also one that is sent again, because the answer to the first was lost."""
    storage.write(NAME, b"old")

    def replace() -> None:
        cloud.remove("data", OBJECT)
        open_storage(storage.root).write(NAME, b"new")

    if answer:
        cloud.fail("^DELETE .*npy", answer)
    rule = cloud.fail("^DELETE .*npy", replace)
    if folder:
        storage.delete_folder("train")
    else:
        storage.delete(NAME)
    assert rule.hits == 1
    assert cloud.content("data", OBJECT) == b"new"


@on_gs
@pytest.mark.parametrize("size", sorted(SIZES))
def test_an_answer_that_leaves_out_what_was_written_is_asked_for(
    cloud: Proxy, storage: Storage, size: str
) -> None:
    cloud.fail("^(POST|PUT) /upload", LeaveOut(("size",)), range(1, 100))
    storage.write(NAME, content_of(size))
    assert storage.size(NAME) == SIZES[size]


@on_gs
def test_an_empty_object_may_be_without_a_size(cloud: Proxy, storage: Storage) -> None:
    """As on Google's storage-testbench, whose JSON has no zeros, in each answer."""
    cloud.fail("^(GET|POST|PUT) ", LeaveOutZeros(), range(1, 100))
    storage.write(EMPTY, b"")
    storage.write(EMPTY, b"")
    storage.write(FULL, b"full")
    assert storage.size(EMPTY) == 0
    with storage.open(EMPTY) as opened:
        assert opened.read() == b""
    assert {entry.name: entry.size for entry in storage.entries("train")} == {EMPTY: 0, FULL: 4}
    found = find_files([f"{storage.root}/train/*"])
    assert sorted(file.size for file in found) == [0, 4]
    storage.delete(EMPTY)
    assert storage.size(EMPTY) is None


@on_gs
def test_an_object_without_a_size_is_refused(cloud: Proxy, storage: Storage) -> None:
    storage.write(NAME, b"first")
    cloud.fail("^GET", LeaveOut(("size",)), range(1, 100))
    for ask in (storage.size, storage.open, storage.delete):
        with pytest.raises(OutputError, match=f"^gs://data/{OBJECT} cannot be used: the server le"):
            ask(NAME)


def test_seeking_reads_nothing(cloud: Proxy, storage: Storage) -> None:
    storage.write(NAME, b"0123456789")
    with storage.open(NAME) as opened:
        assert isinstance(opened.raw, RangeReader)  # type: ignore[attr-defined]
        assert opened.seek(0, os.SEEK_END) == 10
        assert opened.seek(-3, os.SEEK_CUR) == 7
        assert cloud.count(cloud.download) == 0
        assert opened.read(2) == b"78"
        assert opened.seek(100) == 100
        assert opened.read() == b""
