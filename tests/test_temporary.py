"""No room for temporary files is one sentence; other errors stay what they are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fineshards.errors import OutputError
from fineshards.storage.temporary import temporary_room


def test_a_full_disk_is_named_with_what_to_do() -> None:
    words = rf"cannot be written in {tempfile.gettempdir()}: No space left .* set TMPDIR"
    # The kernel's own full disk.
    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(OutputError, match=words),
        temporary_room(),
    ):
        full.write(b"x")


def test_no_folder_for_temporary_files_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/no/such/folder"])
    words = r"no folder with space for temporary files"
    with pytest.raises(OutputError, match=words), temporary_room():
        pass


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), temporary_room():
        (tmp_path / "missing").read_bytes()
