"""Storage: a file appears complete or not at all, whatever happens to its writer."""

import mmap
import os
import pickle
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pytest
from support.damage import checksum

from fineshards.errors import OutputError, UsageError
from fineshards.storage.base import TEMPORARY, FileRange, Storage
from fineshards.storage.checksums import checksum_to_base64
from fineshards.storage.open import open_storage


@pytest.fixture(params=["local", "gs", pytest.param("s3", marks=pytest.mark.cloud)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(str(tmp_path / "out"))
    request.getfixturevalue({"gs": "cloud", "s3": "s3"}[request.param])
    return open_storage(f"{request.param}://data/deep/out")


# For what needs a disk. Objects have test_object_storage.py and test_s3_storage.py.
on_a_disk = pytest.mark.parametrize("storage", ["local"], indirect=True)


def names(storage: Storage) -> list[str]:
    return sorted(entry.name for entry in storage.entries(""))


def test_a_written_file_reads_back_and_nothing_else_is_left(storage: Storage) -> None:
    storage.write("train/train_0000.npy", b"content")
    assert storage.read("train/train_0000.npy") == b"content"
    assert storage.size("train/train_0000.npy") == 7
    assert names(storage) == ["train/train_0000.npy"]


def test_a_file_does_not_exist_before_its_writer_ends(storage: Storage) -> None:
    with storage.create("train/train_0000.npy") as file:
        file.write(b"half")
        file.flush()
        assert storage.size("train/train_0000.npy") is None
        assert [entry.name for entry in storage.entries("train")] == []
        assert all(name.startswith(TEMPORARY + "/") for name in names(storage))
    assert names(storage) == ["train/train_0000.npy"]


@on_a_disk
def test_rewriting_a_file_replaces_its_content(storage: Storage) -> None:
    storage.write("a", b"a long first content")
    with storage.create("a") as file:
        file.write(b"short")
        assert storage.read("a") == b"a long first content"
    assert storage.read("a") == b"short"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("before", [None, b"old"])
def test_an_exception_while_writing_leaves_no_trace(
    storage: Storage, error: type[BaseException], before: bytes | None
) -> None:
    if before is not None:
        storage.write("train/train_0000.npy", before)

    def fail_halfway() -> None:
        with storage.create("train/train_0000.npy") as file:
            file.write(b"new" * 100_000)
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert names(storage) == ([] if before is None else ["train/train_0000.npy"])
    if before is not None:
        assert storage.read("train/train_0000.npy") == before


def test_a_missing_file_has_no_size_and_cannot_be_read(storage: Storage) -> None:
    assert storage.size("metadata/manifest.json") is None
    assert list(storage.entries("train")) == []
    assert storage.read_if_there("metadata/manifest.json") is None
    for read in (storage.read, storage.open):
        with pytest.raises(OutputError, match=r"out/metadata/manifest\.json cannot be read: "):
            read("metadata/manifest.json")


HEADER = b"h" * 128


def write_parts(storage: Storage) -> tuple[list[FileRange], bytes]:
    """Whole and cut parts of three files, and their bytes joined."""
    contents = {f"blocks/{n}": random.Random(n).randbytes(1000 + n) for n in range(3)}
    for name, content in contents.items():
        storage.write(name, content)
    bounds = [("blocks/0", 10, 1000), ("blocks/1", 0, 1001), ("blocks/2", 0, 7)]
    parts = [FileRange(*each) for each in bounds]
    return parts, b"".join(contents[part.name][part.start : part.stop] for part in parts)


def test_assembled_files_have_the_bytes_of_their_parts(storage: Storage) -> None:
    parts, joined = write_parts(storage)
    for number, (header, some, expected) in enumerate(
        [
            (HEADER, parts, HEADER + joined),
            (b"", parts, joined),
            (HEADER, [], HEADER),
            (HEADER, parts[:1], HEADER + joined[:990]),
            (b"", parts[1:2], joined[990:1991]),
        ]
    ):
        name = f"train/train_{number:04d}.npy"
        assert storage.assemble(name, header, some) == google_crc32c.value(expected)
        assert storage.read(name) == expected
    assert [name for name in names(storage) if not name.startswith(("blocks/", "train/"))] == []


@pytest.mark.parametrize("stored", [None, b"1" * 1000])
def test_a_part_that_is_missing_or_too_short_is_named_and_no_file_appears(
    storage: Storage, stored: bytes | None
) -> None:
    parts, _ = write_parts(storage)
    storage.delete("blocks/1")
    if stored is not None:
        storage.write("blocks/1", stored)
    with pytest.raises(OutputError, match=rf"^{re.escape(storage.path('blocks/1'))} "):
        storage.assemble("train/train_0000.npy", HEADER, parts)
    assert list(storage.entries("train")) == []
    assert list(storage.entries(TEMPORARY)) == []


@on_a_disk
def test_a_mapped_file_has_the_bytes_and_is_read_only(storage: Storage) -> None:
    assert storage.on_disk
    storage.write("train/train_0000.npy", b"content")
    mapped = storage.open_mapped("train/train_0000.npy")
    assert isinstance(mapped, mmap.mmap)
    assert bytes(mapped) == b"content"
    with pytest.raises(TypeError, match="readonly"):
        mapped[0] = 0
    # The mapping survives its file's name.
    storage.delete("train/train_0000.npy")
    assert bytes(mapped) == b"content"


@on_a_disk
def test_an_empty_file_is_mapped_as_no_bytes(storage: Storage) -> None:
    storage.write("empty", b"")
    assert storage.open_mapped("empty") == b""


@on_a_disk
def test_a_missing_file_cannot_be_mapped(storage: Storage) -> None:
    with pytest.raises(
        OutputError, match=rf"^{re.escape(storage.path('gone'))} cannot be read: No such file"
    ):
        storage.open_mapped("gone")


def test_entries_are_all_files_at_any_depth(storage: Storage) -> None:
    for name in ("train/b", "train/a", "train/x/y/z"):
        storage.write(name, name.encode())
    storage.write("test/other", b"")
    found = {entry.name: entry for entry in storage.entries("train")}
    assert sorted(found) == ["train/a", "train/b", "train/x/y/z"]
    assert found["train/x/y/z"].size == len("train/x/y/z")
    assert abs(found["train/a"].modified - time.time()) < 600
    assert names(storage) == ["test/other", "train/a", "train/b", "train/x/y/z"]


def test_names_start_with_a_prefix_and_end_at_the_next_folder(storage: Storage) -> None:
    for name in ("train/b", "train/x/y", "train_old/a", "training", "test/other"):
        storage.write(name, b"")
    assert sorted(storage.names("train")) == ["train/", "train_old/", "training"]
    assert sorted(storage.names("train/")) == ["train/b", "train/x/"]
    assert {"test/", "train/", "train_old/", "training"} <= set(storage.names(""))
    assert list(storage.names("train/x/y")) == ["train/x/y"]
    assert list(storage.names("none/")) == list(storage.names("none")) == []


@on_a_disk
def test_what_is_not_a_file_is_listed_as_what_it_is_and_never_opened(storage: Storage) -> None:
    """Opening a named pipe would wait for a writer."""
    storage.write("train/file", b"x")
    folder = Path(storage.path("train"))
    os.mkfifo(folder / "pipe")
    (folder / "deep").mkdir()
    (folder / "deep/link").symlink_to("link")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "linked").symlink_to("file")
    assert dict(storage.others("train")) == {
        "train/pipe": "a named pipe",
        "train/deep": "a folder",
        "train/deep/link": "a link that leads nowhere",
        "train/dangling": "a link that leads nowhere",
    }
    assert {entry.name for entry in storage.entries("train")} == {"train/file", "train/linked"}
    assert storage.read("train/linked") == b"x"
    for name, kind in storage.others("train"):
        for read in (storage.open, storage.open_mapped, storage.read):
            with pytest.raises(OutputError, match=f"{name} cannot be read: it is {kind}, not a f"):
                read(name)


def test_folders_are_not_listed_as_files(storage: Storage) -> None:
    storage.make_folders(("train", "test"))
    storage.make_folders(("train", "test"))
    storage.write("train/a", b"")
    assert names(storage) == ["train/a"]
    assert list(storage.names("train/")) == ["train/a"]


def test_a_written_file_has_the_checksum_that_is_returned(storage: Storage) -> None:
    assert checksum_to_base64(storage.write("file", b"content")) == checksum(b"content")


def test_an_empty_file_exists(storage: Storage) -> None:
    storage.write("empty", b"")
    assert storage.size("empty") == 0
    assert storage.read("empty") == storage.read_if_there("empty") == b""
    with storage.open("empty") as opened:
        assert opened.read(1) == b""


def test_a_pickled_storage_is_small_and_works(storage: Storage) -> None:
    storage.write("a", b"content")
    content = pickle.dumps(storage)
    assert len(content) < 300
    assert pickle.loads(content).read("a") == b"content"


@on_a_disk
def test_entries_leaves_out_files_that_are_deleted_meanwhile(storage: Storage) -> None:
    everything = {f"train/{number}" for number in range(10)}
    for name in everything:
        storage.write(name, b"x")
    reading = storage.entries("train")
    first = next(reading).name
    for name in everything - {first, "train/3", "train/4"}:
        storage.delete(name)
    assert {first} | {entry.name for entry in reading} == {first, "train/3", "train/4"}


def test_delete_removes_one_file_and_accepts_a_missing_one(storage: Storage) -> None:
    storage.write("a/b", b"")
    storage.write("a/c", b"")
    storage.delete("a/b")
    storage.delete("a/b")
    storage.delete("never/there")
    assert names(storage) == ["a/c"]


def test_delete_folder_removes_its_content_and_accepts_a_missing_one(storage: Storage) -> None:
    for name in ("a/b", "a/c/d", "ab"):
        storage.write(name, b"")
    storage.delete_folder("a")
    storage.delete_folder("a")
    assert names(storage) == ["ab"]
    assert list(storage.names("a")) == ["ab"]


def test_a_check_that_fails_ends_a_deletion(storage: Storage) -> None:
    def refuse() -> None:
        raise OutputError("taken")

    for name in ("a/b", "a/c"):
        storage.write(name, b"")
    with pytest.raises(OutputError, match="taken"):
        storage.delete("a/b", check=refuse)
    with pytest.raises(OutputError, match="taken"):
        storage.delete_folder("a", check=refuse)
    assert names(storage) == ["a/b", "a/c"]


def test_a_file_that_is_written_again_has_another_version(storage: Storage) -> None:
    assert storage.version("a") is None
    storage.write("a", b"same")
    first = storage.version("a")
    assert first == storage.version("a") is not None
    storage.delete("a")
    storage.write("a", b"same")
    assert storage.version("a") not in (first, None)


def test_threads_may_delete_the_same_folder_at_once(storage: Storage) -> None:
    for number in range(100):
        storage.write(f"a/{number % 7}/{number}", b"")
    with ThreadPoolExecutor(4) as pool:
        for result in [pool.submit(storage.delete_folder, "a") for _ in range(4)]:
            result.result()
    assert list(storage.names("a")) == []


def test_other_url_schemes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"az:// is not supported"):
        open_storage("az://bucket/out")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_url_that_lost_a_slash_or_has_no_bucket_is_refused(scheme: str) -> None:
    with pytest.raises(UsageError, match=f"give {scheme}://bucket/folder as text"):
        open_storage(str(Path(f"{scheme}://bucket/folder")))
    with pytest.raises(UsageError, match=f"has no bucket name. Give {scheme}://bucket/folder"):
        open_storage(f"{scheme}://")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/hostname", "a/../../x", "a//x", ".", "./x", "x\0", "\ud800", "x" * 10**7]
)
@pytest.mark.parametrize("root", ["out", "gs://bucket/out", "s3://bucket/out"])
def test_no_name_leads_out_of_the_folder(root: str, name: str, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / root) if root == "out" else root)
    for use in (
        storage.size,
        storage.open,
        storage.read,
        storage.delete,
        storage.version,
        lambda name: storage.write(name, b"x"),
        lambda name: storage.claim(name, b"x"),
        lambda name: storage.read_range(name, 0, 1),
    ):
        with pytest.raises(OutputError, match="which is not a file of this folder") as error:
            use(name)
        assert len(str(error.value)) < 1000
    assert [path.name for path in tmp_path.rglob("x*")] == []
