"""Text files: one document each, or what `--text_separator` makes of them."""

import gzip
import itertools
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import ROOT
from support.growing import append, build
from support.oracle import oracle, shards_in, streams_of
from support.source_files import Read, blocks_of, describe, read_all, read_file
from test_csv import COMPRESSORS

import fineshards
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.settings import Columns
from fineshards.shards.record import replace
from fineshards.sources.formats.extraction import with_extraction


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize("text", ["", "a", "naïve\r\n\n中文 😀\x00\n", "x\n" * 5_000_000])
def test_a_file_is_a_document(tmp_path: Path, ending: str, text: str) -> None:
    path = tmp_path / f"a name.txt{ending}"
    path.write_bytes(COMPRESSORS[ending](text.encode()))
    read = read_all(path)
    assert read.rows == [(0, text, str(path))]  # below the input's root
    assert read.bad == []


def separated(path: Path, separator: str | None) -> Read:
    return read_file(replace(describe(path), extraction=separator))


@pytest.mark.parametrize("separator", [None, "line", "blank_line", "|"])
def test_a_byte_order_mark_is_not_text(tmp_path: Path, separator: str | None) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    assert separated(path, separator).texts == ["a\ufeff"]


def expected_pieces(text: str, separator: str) -> list[str]:
    """What a separator makes of a text, by definition; blank pieces keep their rows."""
    if separator not in ("line", "blank_line"):
        pieces = text.split(separator)
        return pieces if pieces[-1] else pieces[:-1]
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if separator == "line":
        return lines if lines[-1] else lines[:-1]
    # As bytes: of white space, only that of ASCII makes a blank line.
    groups = itertools.groupby(lines, key=lambda line: bool(line.encode().strip()))
    return ["\n".join(group) for is_text, group in groups if is_text]


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize("separator", ["line", "blank_line", "<|e|>", "\n---\n", "aa"])
def test_a_separator_makes_documents_of_a_file(tmp_path: Path, separator: str, ending: str) -> None:
    """Of several megabytes, so that pieces and separators cross what is read at a time."""
    chance = random.Random(separator)
    # Texts of paragraphs keep their own line ends, so CR LF comes only where that does not matter.
    parts = ["a", "aa", "é", " ", "\n", "\n\n", "<|e|>", "\n---\n", "\v", "\x1c", "\u2028"]
    parts += ["\r", "\r\n"] if separator == "line" else []
    texts = ["", "\n", "a", "a\n", separator, separator * 3, f"\n {separator}a{separator}b"]
    texts += ["".join(chance.choices(parts, k=n)) for n in (9, 9, 99, 2000)]
    texts.append("x" * (2 << 20) + "".join(chance.choices(parts, k=200)) * 5000)
    path = tmp_path / f"a b.txt{ending}"
    for text in texts[-1:] if ending == ".xz" else texts:
        path.write_bytes(COMPRESSORS[ending](text.encode()))
        read = separated(path, separator)
        assert read.bad == []
        assert read.rows == [
            # As bytes: of white space, ASCII's alone is blank.
            (row, piece if piece.encode().strip() else None, f"{path}#{row}")
            for row, piece in enumerate(expected_pieces(text, separator))
        ]


def test_paragraphs_end_at_blank_lines_of_any_system(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\r\n\r\na\r\nb\r\n\t \r\n\r\nc\rd\r\re")
    assert separated(path, "blank_line").texts == ["a\r\nb", "c\rd", "e"]


@pytest.mark.parametrize(
    ("separator", "good", "bad"),
    [
        ("line", ["a", "b", "d"], [(2, "line 3"), (4, "line 5")]),
        ("blank_line", [], [(0, "line 3")]),
        ("\nc", ["\nd"], [(0, "line 3"), (2, "line 6")]),
        (None, [], [(0, "line 3")]),
    ],
)
def test_what_is_not_utf8_is_a_bad_row_that_names_line_and_byte(
    tmp_path: Path, separator: str | None, good: list[str], bad: list[tuple[int, str]]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n\xe4\nc\nd\nc\xe4\n" if separator == "\nc" else b"a\nb\n\xe4\nd\n\xe4")
    read = separated(path, separator)
    assert [text for _, text, _ in read.rows] == good
    assert [(row.row, row.place) for row in read.bad] == bad
    assert {row.reason for row in read.bad} == {"its 'text' is not valid UTF-8: byte 0xE4"}


@pytest.mark.parametrize("separator", ["line", "blank_line", "|"])
def test_another_encoding_or_format_ends_the_reading_of_documents(
    tmp_path: Path, separator: str
) -> None:
    path = tmp_path / "a.txt"
    for content, said in (("ab".encode("utf-16"), "is in UTF-16"), (b"PAR1", "is a Parquet file")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"a\.txt: {said}"):
            separated(path, separator)
    path.write_bytes(gzip.compress(b"a|b\n" * 9999)[:-9])
    with pytest.raises(InputError, match="is damaged or truncated"):
        separated(path, separator)


def test_a_separator_is_a_name_or_a_text_and_goes_with_text_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    text = [describe(tmp_path / "a.txt")]
    for wrong, said in (("lines", "line"), ("newline", "line"), ("blank line", "blank_line")):
        with pytest.raises(UsageError, match=rf"'{wrong}': expected .* Did you mean {said}\?"):
            with_extraction(text, "resiliparse", separator=wrong)
    with pytest.raises(UsageError, match="--text_separator '': expected line"):
        with_extraction(text, "resiliparse", separator="")
    (file,) = with_extraction(text, "resiliparse", separator="END")
    assert file.extraction == "END"
    (tmp_path / "a.csv").write_text("text\na\n")
    with pytest.raises(UsageError, match=r"'END' goes with \.txt files: the input has none"):
        with_extraction([describe(tmp_path / "a.csv")], "resiliparse", separator="END")


def test_documents_of_a_file_are_built_appended_compared_and_repaired(tmp_path: Path) -> None:
    texts = [f"text {number}\nof two: lines" * (number % 7) for number in range(300)]
    files = [tmp_path / "in/a.txt", tmp_path / "in/b.txt.gz"]
    files[0].parent.mkdir()
    files[0].write_text("<|a: b|>".join(texts[:200]))
    files[1].write_bytes(gzip.compress("<|a: b|>".join(texts[200:]).encode()))
    flags = ["--shard_tokens=500", "--test_shards=1"]
    build(tmp_path / "grown", files[0], "--text_separator=<|a: b|>", *flags)
    append(tmp_path / "grown", files[1])
    expected = oracle(filter(None, texts), 500, 1)
    assert streams_of(shards_in(tmp_path / "grown")) == streams_of(expected)
    assert fineshards.verify(tmp_path / "grown", sample="100%").ok

    output = shards_in(tmp_path / "grown")
    shutil.rmtree(tmp_path / "grown/train")
    fineshards.repair(tmp_path / "grown")
    assert shards_in(tmp_path / "grown") == output

    with pytest.raises(UsageError, match=r"extraction of .*a\.txt: .*a: b.*'line'"):
        fineshards.build(
            input=[*map(str, files)],
            output=tmp_path / "grown",
            text_separator="line",
            shard_tokens=500,
            test_shards=1,
        )
    build(tmp_path / "few", files[0], "--text_separator=<|a: b|>", "--limit=9", *flags)
    assert shards_in(tmp_path / "few") == oracle([*filter(None, texts)][:9], 500, 1)


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
from support.source_files import describe
from fineshards.errors import InputError
from fineshards.shards.record import replace
from fineshards.sources.reading import discover_blocks, read_block
from support.source_files import COLUMNS

file, rows, said = replace(describe(Path(sys.argv[1])), extraction=sys.argv[2] or None), 0, ""
try:
    (block,) = discover_blocks(file, COLUMNS, 1)
    rows = sum(len(batch.numbers) for batch in read_block(file, COLUMNS, block))
except InputError as error:
    said = error
# Not from ru_maxrss, which starts at the parent's memory.
kilobytes = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]
print(int(kilobytes) * 1024, said or rows)
"""


def read_in_a_process(path: Path, separator: str = "") -> tuple[int, str]:
    """The most memory that reading a file took, and the number of its rows or the error."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), separator],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
    )
    assert done.returncode == 0, done.stderr
    memory, _, said = done.stdout.partition(" ")
    return int(memory), said.strip()


@pytest.mark.parametrize("separator", ["line", "blank_line", "|"])
def test_a_large_file_is_read_in_small_memory(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((b"0123456789" * 99 + b"|\n\n") * 200_000)  # 190 MiB
    memory, rows = read_in_a_process(path, separator)
    assert memory < 180 << 20
    assert int(rows) == {"line": 400_000, "blank_line": 200_000, "|": 200_001}[separator]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "begin", "separator", "said"),
    [
        ("a.jsonl.gz", b'{"text":"', "", "line 1 has more than 1,073,741,824 bytes"),
        ("a.csv.zst", b"text\n", "", "line 2 has more than 1,073,741,824 bytes"),
        ("a.txt.xz", b"", "", "its text has more than 1,073,741,824 bytes"),
        ("a.txt.gz", b"\n|\n", "|", "the text from line 2 has more than 1,073,741,824"),
    ],
)
def test_five_gigabytes_without_an_end_are_an_error_in_bounded_memory(
    tmp_path: Path, name: str, begin: bytes, separator: str, said: str
) -> None:
    """A few megabytes on disk: one piece, compressed once and repeated."""
    path = tmp_path / name
    compress = COMPRESSORS[path.suffix]
    path.write_bytes(compress(begin) + compress(b"a" * (64 << 20)) * 80)
    assert path.stat().st_size < 6 << 20
    memory, sentence = read_in_a_process(path, separator)
    assert re.search(said, sentence)
    assert memory < 2 << 30
