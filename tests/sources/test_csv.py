"""CSV and TSV: every record once and in order, as Python's csv module reads it."""

import bz2
import csv
import gzip
import io
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from support.source_files import blocks_of, describe, read_all, read_file

from fineshards.errors import InputError, UsageError
from fineshards.shards.job.settings import Columns
from fineshards.shards.record import replace
from fineshards.sources.formats.extraction import with_extraction

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}
HOSTILE = ["", "a", '"', '""', ",", "\t", "\n", "\r\n", "a\nb", " a ", "中", "\x00", "#", "x" * 99]


def written(rows: list[list[str]], delimiter: str = ",", end: str = "\n") -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
        rows
    )
    return buffer.getvalue().encode()


@pytest.mark.parametrize("ending", COMPRESSORS)
@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_record_is_a_row(
    tmp_path: Path, name: str, delimiter: str, ending: str, end: str
) -> None:
    chosen = random.Random(1)
    rows = [
        ["".join(chosen.choices(HOSTILE, k=chosen.randrange(4))), chosen.choice(HOSTILE), str(n)]
        for n in range(3_000)
    ]
    path = tmp_path / (name + ending)
    path.write_bytes(COMPRESSORS[ending](written([["id", "text", "n"], *rows], delimiter, end)))
    file = replace(describe(path), extraction="quotes")
    read = read_file(file, columns=Columns("text", "id", True, others=("n",)))
    assert read.bad == []
    assert read.rows == [(n, text, id_) for n, (id_, text, _) in enumerate(rows)]
    assert read.others == {"n": [str(n) for n in range(3_000)]}


QUOTES = 'he said\t"hi"\n"begins so\t1\nx\t""\n"y" z\t\n\t4\n'


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_quotes_are_text_where_there_is_no_quoting(
    tmp_path: Path, name: str, delimiter: str
) -> None:
    path = tmp_path / name
    path.write_text("text\tid\n".replace("\t", delimiter) + QUOTES.replace("\t", delimiter))
    plain = [*csv.reader(path.open(), delimiter=delimiter, quoting=csv.QUOTE_NONE)][1:]
    for extraction in ("none", None) if name == "a.tsv" else ("none",):
        read = read_file(replace(describe(path), extraction=extraction))
        assert read.rows == [
            (number, text or None, id_ or None) for number, (text, id_) in enumerate(plain)
        ]
        assert read.bad == []


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_quote_that_is_closed_inside_a_word_is_an_error_with_its_first_line(
    tmp_path: Path, name: str
) -> None:
    """It would make one document of four lines."""
    path = tmp_path / name
    path.write_text('text\na\n"begins so\nx\nthe "last" word\nb\n')
    words = rf"{name}, line 3: a record that begins here cannot be read: .* give --quoting none"
    with pytest.raises(InputError, match=words):
        read_file(replace(describe(path), extraction="quotes"))


def test_a_quoted_header_that_is_read_as_text_names_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('"content"\t"text"\n"a"\t"b"\n')
    said = r"no column 'text'; its columns are \"content\", .* give --quoting quotes\."
    with pytest.raises(InputError, match=said):
        read_file(describe(path))
    assert read_file(replace(describe(path), extraction="quotes")).rows == [(0, "b", None)]


def test_quoting_goes_with_csv_and_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\na\n")
    (tmp_path / "a.txt").write_text("a")
    tsv, txt = describe(tmp_path / "a.tsv"), describe(tmp_path / "a.txt")
    found = with_extraction([tsv, txt], "resiliparse", "quotes")
    assert [file.extraction for file in found] == ["quotes", None]
    with pytest.raises(UsageError, match=r"--quoting 'none' goes with \.csv and \.tsv files"):
        with_extraction([txt], "resiliparse", "none")


def test_an_empty_value_is_null_and_a_quoted_one_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,id,x\na,,1\n,b,\n"",c,""\n\nNA,null,NaN')
    columns = Columns("text", "id", False, others=("x",))
    read = read_all(path, columns=columns)
    assert read.rows == [(0, "a", None), (1, None, "b"), (2, "", "c"), (3, "NA", "null")]
    assert read.others == {"x": ["1", None, "", "NaN"]}


def test_a_record_with_another_number_of_values_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbftext,id\n3\na,1\n\n"b\n",2,3\nc,4\n"d\nd"\ne,5\nf\n')
    read = read_all(path)
    assert read.rows == [(1, "a", "1"), (3, "c", "4"), (5, "e", "5")]
    assert [(bad.row, bad.reason) for bad in read.bad] == [
        (0, "has 1 values, expected 2"),
        (2, "has 3 values, expected 2"),
        (4, "has 1 values, expected 2"),
        (6, "has 1 values, expected 2"),
    ]


def test_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,id,x\na,1,\xff\n\xe4,2,\nb,\xff,\n")
    read = read_all(path)
    assert read.rows == [(0, "a", "1"), (2, "b", None)]
    assert [(bad.row, bad.reason) for bad in read.bad] == [(1, "its 'text' is not valid UTF-8")]


def test_a_value_of_fifty_megabytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    text = "a\n" * 25_000_000
    path.write_bytes(gzip.compress(written([["text"], ["before"], [text], ["after"]]), 1))
    assert read_all(path).texts == ["before", text, "after"]


@pytest.mark.parametrize("content", [b"text,id", b"text,id\n", b"text,id\r\n\r\n"])
def test_a_file_with_a_header_alone_has_no_rows(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert (read_all(path).rows, read_all(path).bad) == ([], [])


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_header_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.csv: has no header that can be read"):
        blocks_of(path)


@pytest.mark.parametrize(
    "last", [b'"', b'b,"2', b'b,"2\nc,3\n', b'"b,2\n', b'b,2\n"c', b'b,"2\n\n']
)
def test_a_file_that_ends_inside_a_quoted_value_is_an_error(tmp_path: Path, last: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,id\na,1\n" + last)
    with pytest.raises(
        InputError, match=r"a\.csv, line [234]: a record that begins here cannot be"
    ):
        read_all(path)


def test_missing_columns_are_an_error_that_lists_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("content,url\na,b\n")
    with pytest.raises(InputError, match=r"no column 'text'; its columns are content, url\."):
        blocks_of(path)
    with pytest.raises(InputError, match=r"no column 'score'; .* A step of the recipe"):
        blocks_of(path, columns=Columns("content", "id", False, others=("score",)))
    path.write_text("text,text\na,b\n")
    with pytest.raises(InputError, match="several columns 'text'"):
        blocks_of(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_another_encoding_is_an_error(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,id\nä,1\n".encode(encoding))
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    with pytest.raises(InputError, match=rf"a\.csv: is in {name}, expected UTF-8\. .*iconv"):
        blocks_of(path)
