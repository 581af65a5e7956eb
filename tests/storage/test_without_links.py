"""Claims of a name in a local folder, also on a file system without links, such as exFAT."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from fineshards.errors import OutputError
from fineshards.storage import local
from fineshards.storage.open import open_storage


def refuse(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


@pytest.fixture(params=[errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder where links are refused as Linux refuses them; its renames are real."""
    monkeypatch.setattr(os, "link", lambda *_: refuse(request.param))
    monkeypatch.setattr(os, "symlink", lambda *_: refuse(request.param))
    return tmp_path / "out"


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


def test_a_file_system_without_links_is_named(root: Path) -> None:
    with pytest.raises(OutputError, match=r"a/b cannot be written: its file system has no hard li"):
        open_storage(str(root)).claim("a/b", b"x")
    assert not (root / "a/b").exists()
    assert os.listdir(root / local.TEMPORARY) == []
