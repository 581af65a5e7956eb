"""Plain text files: one document each, whose id is the name of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.source_files import blocks_of, read_all
from test_csv import COMPRESSORS

from fineshards.errors import InputError
from fineshards.shards.job import Columns


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize("text", ["", "a", "naïve\r\n\n中文 😀\x00\n", "x\n" * 5_000_000])
def test_a_file_is_a_document(tmp_path: Path, ending: str, text: str) -> None:
    path = tmp_path / f"a name.txt{ending}"
    path.write_bytes(COMPRESSORS[ending](text.encode()))
    read = read_all(path)
    assert read.rows == [(0, text, path.name)]
    assert read.bad == []


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    assert read_all(path).rows == [(0, "a\ufeff", "a.txt")]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_another_encoding_is_a_bad_row(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("äö".encode(encoding))
    read = read_all(path)
    assert read.rows == []
    assert [(bad.row, bad.reason) for bad in read.bad] == [(0, "its 'text' is not valid UTF-8")]


def test_other_columns_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a")
    for columns in (Columns("content", "id", False), Columns("text", "id", False, "url")):
        with pytest.raises(InputError, match=r"its columns are text, id\."):
            blocks_of(path, columns=columns)


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
def test_damaged_compression_is_an_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    whole = COMPRESSORS[ending](b"some text")
    for damaged in (b"", b"text", whole[:-1], whole[: len(whole) // 2], whole + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=rf"a\.txt{ending}"):
            read_all(path)
