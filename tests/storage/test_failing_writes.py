"""Writers on a disk that are killed, run at once, or fail."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.checkout import ROOT

from fineshards.errors import OutputError
from fineshards.storage.base import TEMPORARY, Storage
from fineshards.storage.open import open_storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "out"))


def names(storage: Storage) -> list[str]:
    return sorted(entry.name for entry in storage.entries(""))


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users can enter; they cannot enter `tmp_path`."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Runs a program with `storage` and `sys` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _PREAMBLE + program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


_PREAMBLE = """
import os, resource, sys, time
from fineshards.errors import OutputError
from fineshards.storage.open import open_storage
storage = open_storage(sys.argv[1])
"""


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_killed_writer_leaves_the_old_content_and_a_temporary_file(
    storage: Storage, before: bytes | None
) -> None:
    name = "train/train_0000.npy"
    if before is not None:
        storage.write(name, before)
    writer = start(
        f"""
with storage.create({name!r}) as file:
    file.write(b"new" * 100_000)
    file.flush()
    print("writing", flush=True)
    time.sleep(600)
""",
        storage.root,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    left = [entry.name for entry in storage.entries(TEMPORARY)]
    assert len(left) == 1
    assert names(storage) == sorted(left + ([] if before is None else [name]))
    storage.write(name, b"second attempt")
    assert storage.read(name) == b"second attempt"


def test_two_processes_that_write_the_same_file_both_succeed(storage: Storage) -> None:
    program = """
content = sys.argv[2].encode() * 300_000
for _ in range(30):
    with storage.create("train/train_0000.npy") as file:
        for start in range(0, len(content), 100_000):
            file.write(content[start : start + 100_000])
    seen = storage.read("train/train_0000.npy")
    assert len(seen) == len(content) and len(set(seen)) == 1, "a mixture was visible"
"""
    writers = [start(program, storage.root, letter) for letter in "ab"]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert storage.read("train/train_0000.npy") in (b"a" * 300_000, b"b" * 300_000)
    assert names(storage) == ["train/train_0000.npy"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_the_mode_of_files(storage: Storage, umask: int, mode: int) -> None:
    writer = start(f'os.umask({umask}); storage.write("a/b", b"x")', storage.root)
    _, errors = writer.communicate()
    assert writer.returncode == 0, errors
    assert os.stat(storage.path("a/b")).st_mode & 0o777 == mode


def test_a_full_disk_is_an_output_error_that_names_the_file_and_leaves_nothing(
    storage: Storage,
) -> None:
    # The limit makes write() fail halfway as a full disk does.
    writer = start(
        """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for size in (100_001, 10_000_000):
    try:
        storage.write("train/train_0000.npy", b"x" * size)
    except OutputError as error:
        print(error)
storage.write("fits", b"x" * 100_000)
""",
        storage.root,
    )
    output, errors = writer.communicate()
    assert writer.returncode == 0, errors
    assert errors == ""
    lines = output.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"{storage.root}/train/train_0000.npy cannot be written: File too l")
    assert names(storage) == ["fits"]


def test_a_rename_that_fails_is_an_output_error_and_leaves_nothing(storage: Storage) -> None:
    os.makedirs(storage.path("train/train_0000.npy/in_the_way"))
    with pytest.raises(OutputError, match=r"train/train_0000\.npy cannot be written: Is a direc"):
        storage.write("train/train_0000.npy", b"x")
    assert names(storage) == []


def test_an_output_below_a_file_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("I am not a folder")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        storage = open_storage(str(root))
        assert storage.size("metadata/job.json") is None
        assert list(storage.entries("train")) == []
        with pytest.raises(OutputError, match=r"metadata/job\.json cannot be written: .*irectory"):
            storage.write("metadata/job.json", b"x")
        with pytest.raises(OutputError, match=r"metadata/job\.json cannot be read: Not a direct"):
            storage.read("metadata/job.json")
    assert (tmp_path / "file").read_text() == "I am not a folder"


def test_an_output_without_permission_is_an_output_error(reachable: Path) -> None:
    storage = open_storage(str(reachable))
    storage.write("closed/file", b"x")
    os.chmod(storage.path("closed"), 0o700)
    os.chmod(storage.root, 0o755)
    # The superuser has every permission, so the attempt runs as the user nobody.
    attempt = start(
        """
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
else:
    os.chmod(storage.path("closed"), 0); os.chmod(storage.root, 0o555)
for action in (
    lambda: storage.write("new", b"y"),
    lambda: storage.read("closed/file"),
    lambda: storage.size("closed/file"),
    lambda: storage.delete("closed/file"),
    lambda: storage.delete_folder("closed"),
):
    try:
        action()
    except OutputError as error:
        print(error)
""",
        storage.root,
    )
    output, errors = attempt.communicate()
    os.chmod(storage.root, 0o755)
    os.chmod(storage.path("closed"), 0o755)
    assert attempt.returncode == 0, errors
    found = [line.split(": ")[0].removeprefix(storage.root + "/") for line in output.splitlines()]
    assert found == [
        "new cannot be written",
        "closed/file cannot be read",
        "closed/file cannot be read",
        "closed/file cannot be deleted",
        "closed cannot be deleted",
    ]
    assert output.count(": Permission denied. ") == 5
    assert storage.read("closed/file") == b"x"


def test_a_clean_up_that_fails_does_not_hide_why(tmp_path: Path) -> None:
    """Nothing can unlink what has become a folder, or rename it to a file."""
    storage = open_storage(str(tmp_path))
    storage.write("a/b", b"before")

    def replace_it() -> None:
        with storage.create("a/b"):
            (unfinished,) = (tmp_path / TEMPORARY).iterdir()
            unfinished.unlink()
            unfinished.mkdir()

    with pytest.raises(OutputError, match="a/b cannot be written"):
        replace_it()
    assert storage.read("a/b") == b"before"
