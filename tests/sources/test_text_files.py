"""Plain text files: one document each, whose id is its path below the input's root."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.source_files import blocks_of, read_all
from test_csv import COMPRESSORS

from fineshards.errors import InputError
from fineshards.shards.job.settings import Columns


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize("text", ["", "a", "naïve\r\n\n中文 😀\x00\n", "x\n" * 5_000_000])
def test_a_file_is_a_document(tmp_path: Path, ending: str, text: str) -> None:
    path = tmp_path / f"a name.txt{ending}"
    path.write_bytes(COMPRESSORS[ending](text.encode()))
    read = read_all(path)
    assert read.rows == [(0, text, str(path))]  # below the input's root
    assert read.bad == []


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    assert [text for _, text, _ in read_all(path).rows] == ["a\ufeff"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_another_encoding_is_a_bad_row(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("äö".encode(encoding))
    read = read_all(path)
    assert read.rows == []
    reason = "its 'text' is not valid UTF-8: byte 0xE4"
    if encoding == "utf-16":
        reason = "its text is in UTF-16, expected UTF-8"
    assert [(bad.row, bad.reason) for bad in read.bad] == [(0, reason)]


def test_other_columns_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a")
    for columns in (Columns("content", "id", False), Columns("text", "id", False, "url")):
        with pytest.raises(InputError, match=r"its columns are text, id\."):
            blocks_of(path, columns=columns)


READ = r"""
import re, sys
from pathlib import Path
from support.source_files import read_all
from fineshards.errors import InputError

try:
    read_all(Path(sys.argv[1]))
except InputError as error:
    # Not from ru_maxrss, which starts at the parent's memory.
    kilobytes = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]
    print(int(kilobytes) * 1024, error)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "begin", "said"),
    [
        ("a.jsonl.gz", b'{"text":"', "line 1 has more than 1,073,741,824 bytes"),
        ("a.csv.zst", b"text\n", "line 2 has more than 1,073,741,824 bytes"),
        ("a.txt.xz", b"", "its text has more than 1,073,741,824 bytes"),
    ],
)
def test_five_gigabytes_without_a_line_end_are_an_error_in_bounded_memory(
    tmp_path: Path, name: str, begin: bytes, said: str
) -> None:
    """A few megabytes on disk: one piece, compressed once and repeated."""
    path = tmp_path / name
    compress = COMPRESSORS[path.suffix]
    path.write_bytes(compress(begin) + compress(b"a" * (64 << 20)) * 80)
    assert path.stat().st_size < 6 << 20
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
    )
    assert done.returncode == 0, done.stderr
    memory, _, sentence = done.stdout.partition(" ")
    assert re.search(said, sentence), done.stderr
    assert "Traceback" not in done.stderr
    assert int(memory) < 2 << 30
