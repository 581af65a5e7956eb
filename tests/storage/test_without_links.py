"""A local folder on a file system without hard links, such as exFAT and some network mounts."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from fineshards.errors import OutputError
from fineshards.storage import local
from fineshards.storage.open import open_storage

# File system and the name of its driver in Linux, or in FUSE.
DRIVERS = (("vfat", "vfat"), ("exfat", "exfat"), ("exfat", "exfat-fuse"))
REFUSED = (
    "a/b cannot be written: the file system mounted at {} has neither hard links nor renames that "
    "never replace a file, "
)


def refuse(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


@pytest.fixture(params=[errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder where links are refused as Linux refuses them; its renames are real."""
    monkeypatch.setattr(os, "link", lambda *_: refuse(request.param))
    monkeypatch.setattr(os, "symlink", lambda *_: refuse(request.param))
    return tmp_path / "out"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system without links, if this machine can mount one."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    for kind, driver in DRIVERS:
        if shutil.which(f"mkfs.{kind}"):
            image.write_bytes(b"")
            os.truncate(image, 64 << 20)
            subprocess.run([f"mkfs.{kind}", image], check=True, capture_output=True)
            command = ["mount", "-t", driver, "-o", "loop", image, folder]
            if not subprocess.run(command, capture_output=True).returncode:
                yield folder
                subprocess.run(["umount", folder], check=True)
                return
    pytest.skip("no file system without links can be mounted here")


def claim_at_once(root: Path) -> None:
    """Many claim one name with other contents: exactly one gets it, and it is complete."""
    storage = open_storage(str(root))
    contents = [bytes([number]) * 100_000 for number in range(8)]
    for round_ in range(10):
        start = threading.Barrier(len(contents))

        def claim(
            content: bytes, name: str = f"a/{round_}", start: threading.Barrier = start
        ) -> bool:
            start.wait()
            return storage.claim(name, content)

        with ThreadPoolExecutor(len(contents)) as pool:
            got = list(pool.map(claim, contents))
        (winner,) = [content for content, has in zip(contents, got, strict=True) if has]
        assert storage.read(f"a/{round_}") == winner
        assert storage.claim(f"a/{round_}", winner)
    assert sorted(os.listdir(root / "a")) == [str(number) for number in range(10)]
    assert os.listdir(root / local.TEMPORARY) == []


def test_of_many_that_claim_a_name_one_gets_it(tmp_path: Path) -> None:
    claim_at_once(tmp_path)


def test_of_many_that_claim_a_name_without_links_one_gets_it(root: Path) -> None:
    claim_at_once(root)


def test_a_mounted_file_system_without_links_keeps_the_promise_or_is_named(mounted: Path) -> None:
    (mounted / "file").touch()
    with pytest.raises(OSError, match="not permitted"):
        os.link(mounted / "file", mounted / "linked")
    said = ""
    try:
        open_storage(str(mounted)).claim("a/b", b"")
    except OutputError as error:
        said = str(error)
    if said:  # as FUSE, which knows no renames that never replace
        assert REFUSED.format(mounted) in said
    else:
        (mounted / "a/b").unlink()
        claim_at_once(mounted)


def test_a_file_system_that_has_neither_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_rename_to_free_name", lambda *_: refuse(errno.EINVAL))
    mount = root.parent
    while not mount.is_mount():
        mount = mount.parent
    with pytest.raises(OutputError, match=REFUSED.format(mount)):
        open_storage(str(root)).claim("a/b", b"x")
    assert not (root / "a/b").exists()
    assert os.listdir(root / local.TEMPORARY) == []
