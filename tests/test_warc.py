"""WARC and WET: a row per page, with the number of its record; nothing is left out unseen."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.source_files import Read, add, blocks_of, describe, read_all

from fineshards.errors import InputError, UsageError
from fineshards.shards.job import Columns
from fineshards.shards.records import SourceFile
from fineshards.sources.extraction import DEPTH_LIMIT, HTML_LIMITS, extract, with_extraction
from fineshards.sources.reading import discover_blocks, read_block

COLUMNS = Columns("text", "id", False, "url", others=("url", "date", "language"))
WORDS = [
    "the",
    "rain",
    "in",
    "Spain",
    "stays",
    "mainly",
    "in",
    "the",
    "plain",
    "and",
    "nobody",
    "has",
    "counted",
    "the",
    "drops",
]


def record(kind: str, body: bytes, number: int = 0, **more: str) -> bytes:
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{number}>",
        "WARC-Target-URI": f"https://host{number % 3}.example/{number}",
        "WARC-Date": "2026-11-22T00:00:00Z",
        "Content-Length": str(len(body)),
    }
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = ["WARC/1.0", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body + b"\r\n\r\n"


def response(html: bytes, number: int = 0, kind: str = "text/html", **more: str) -> bytes:
    """A record of a response. more: fields of its HTTP header."""
    fields = {"Content-Type": kind} | {n.replace("_", "-"): v for n, v in more.items()}
    lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    body = "\r\n".join(lines).encode() + html
    return record("response", body, number, Content_Type="application/http; msgtype=response")


def page(words: Iterable[str]) -> bytes:
    paragraphs = "".join(f"<p>{word} {' '.join(WORDS)}.</p>" for word in words)
    body = f"<body><article>{paragraphs}</article></body>"
    return f"<html><head><title>t</title></head>{body}</html>".encode()


def write(path: Path, records: Iterable[bytes]) -> Path:
    """Writes each record as a member of its own where the name ends with .gz, as is usual."""
    zipped = path.name.endswith(".gz")
    path.write_bytes(b"".join(gzip.compress(r, mtime=0) if zipped else r for r in records))
    return path


def with_extractor(path: Path, extractor: str) -> SourceFile:
    (file,) = with_extraction([describe(path)], extractor)
    return file


def read_with(file: SourceFile) -> Read:
    read = Read([], [], {})
    for block in discover_blocks(file, COLUMNS, 1):
        add(read, read_block(file, COLUMNS, block))
    return read


def crawl() -> list[bytes]:
    """Records as Common Crawl writes them: requests, responses and metadata in turn."""
    records = [record("warcinfo", b"software: test\r\n")]
    for number in range(1, 9):
        records.append(record("request", b"GET / HTTP/1.1\r\n\r\n", number))
        records.append(response(page(f"page{number}-{n}" for n in range(4)), number))
        records.append(record("metadata", b"fetchTimeMs: 1\r\n", number))
    return records


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_every_page_is_a_row_with_the_number_of_its_record(
    tmp_path: Path, name: str, extractor: str
) -> None:
    read = read_with(with_extractor(write(tmp_path / name, crawl()), extractor))
    assert read.bad == []
    assert [number for number, _, _ in read.rows] == list(range(2, 25, 3))
    for n, (_, text, id_) in enumerate(read.rows, start=1):
        assert id_ == f"<urn:uuid:{n}>"
        assert text is not None
        assert all(f"page{n}-{each} {' '.join(WORDS)}." in text for each in range(4))
        assert "<" not in text
    urls = [f"https://host{n % 3}.example/{n}" for n in range(1, 9)]
    assert read.others["url"] == urls
    assert read.others["date"] == ["2026-11-22T00:00:00Z"] * 8
    assert read.others["language"] == [None] * 8


@pytest.mark.parametrize("name", ["a.wet", "a.wet.gz"])
def test_every_text_of_wet_is_a_row(tmp_path: Path, name: str) -> None:
    texts = ["naïve 中文\n\n😀", "", "a\r\n\r\nWARC/1.0\r\n", "x" * 20_000_000]
    records = [record("warcinfo", b"x: y\r\n")]
    for number, text in enumerate(texts, start=1):
        language = {"WARC_Identified_Content_Language": "eng,zho"} if number == 1 else {}
        records.append(record("conversion", text.encode(), number, **language))
    read = read_all(write(tmp_path / name, records), columns=COLUMNS)
    assert read.rows == [
        (n, text or None, f"<urn:uuid:{n}>") for n, text in enumerate(texts, start=1)
    ]
    assert read.others["language"] == ["eng,zho", None, None, None]
    assert read.labels["language"] == ["eng,zho", None, None, None]


@pytest.mark.parametrize(
    ("encoding", "declared"),
    [
        ("utf-8", ""),
        ("utf-8", "utf-8"),
        ("windows-1251", "windows-1251"),
        ("shift_jis", "shift_jis"),
    ],
)
def test_html_is_decoded_as_it_says_or_as_it_looks(encoding: str, declared: str) -> None:
    text = "日本語の文章です。" if encoding == "shift_jis" else "Широкая электрификация"
    meta = f'<meta charset="{declared}">' if declared else ""
    html = f"<html><head>{meta}</head><body><p>{text * 10}</p></body></html>".encode(encoding)
    assert extract(html, "resiliparse") == text * 10


def test_responses_are_decoded(tmp_path: Path) -> None:
    html = page(["one"] * 3)
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(html), html)
    records = [
        response(html),
        response(chunked, Transfer_Encoding="chunked"),
        response(gzip.compress(html), Content_Encoding="gzip"),
        response(html, kind="application/xhtml+xml; charset=utf-8"),
        response(html, kind="TEXT/HTML;charset=utf-8"),
    ]
    read = read_with(with_extractor(write(tmp_path / "a.warc", records), "resiliparse"))
    assert (len(read.rows), read.bad) == (5, [])
    assert len({text for _, text, _ in read.rows}) == 1


def test_what_is_not_html_is_not_a_row(tmp_path: Path) -> None:
    records = [
        response(b"%PDF", kind="application/pdf"),
        response(b"x" * (HTML_LIMITS["resiliparse"] * 2), kind="image/png"),
        record("response", b"\x01\x02", Content_Type="text/dns"),
        record("revisit", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"),
        response(page(["one"])),
    ]
    read = read_with(with_extractor(write(tmp_path / "a.warc", records), "resiliparse"))
    assert [number for number, _, _ in read.rows] == [4]
    assert all(bad.row == 2 for bad in read.bad)


def test_a_page_without_text_is_null(tmp_path: Path) -> None:
    records = [response(b""), response(b"<html></html>"), response(b"<script>x</script> ")]
    for extractor in HTML_LIMITS:
        read = read_with(with_extractor(write(tmp_path / "a.warc", records), extractor))
        assert [text for _, text, _ in read.rows] == [None] * 3


@pytest.mark.parametrize("extractor", HTML_LIMITS)
def test_a_page_beyond_the_limits_is_a_bad_row(tmp_path: Path, extractor: str) -> None:
    limit = HTML_LIMITS[extractor]
    bomb = gzip.compress(b"<p>" + b"a" * (3 * limit))
    records = [
        response(b"<p>" + b"a " * limit),
        response(b"a" * (limit + 1)),
        response(bomb, Content_Encoding="gzip"),
        response(b"<div>" * (DEPTH_LIMIT + 1) + b"deep"),
        response(b"not gzip", Content_Encoding="gzip"),
        response(page(["last"] * 3)),
    ]
    read = read_with(with_extractor(write(tmp_path / "a.warc", records), extractor))
    assert [number for number, _, _ in read.rows] == [5]
    large = f"its HTML has more than {limit:,} bytes"
    assert [(bad.row, bad.reason) for bad in read.bad][:4] == [
        *((n, large) for n in range(3)),
        (3, f"its HTML is nested deeper than {DEPTH_LIMIT} elements"),
    ]
    assert read.bad[4].reason.startswith("its HTTP response cannot be read")


@pytest.mark.parametrize("extractor", HTML_LIMITS)
def test_a_text_does_not_depend_on_earlier_pages(extractor: str) -> None:
    """Pages share most of their paragraphs, which is what remembered segments would remove."""
    chosen = random.Random(5)
    pages = [page(chosen.choices(WORDS, k=6)) for _ in range(12)]
    texts = {html: extract(html, extractor) for html in pages}
    for seed in range(3):
        order = pages * 2
        random.Random(seed).shuffle(order)
        assert [extract(html, extractor) for html in order] == [texts[html] for html in order]
    assert all(texts.values())


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.wet"])
def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, name: str) -> None:
    kind = "conversion" if name == "a.wet" else "metadata"
    records = [record("warcinfo", b"x: y\r\n"), record(kind, b"some text", 1)]
    path = write(tmp_path / name, records)
    between = len(gzip.compress(records[0], mtime=0) if name.endswith(".gz") else records[0])
    whole = path.read_bytes()
    for length in range(4 if name.endswith(".gz") else 1, len(whole)):
        path.write_bytes(whole[:length])
        if length != between:
            with pytest.raises(InputError, match=r"a\.w(arc|et)"):
                read_all(path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"<html>", "record 0: does not begin as a WARC record"),
        (record("warcinfo", b"a") + b"garbage\r\n", "record 1: does not begin"),
        (record("warcinfo", b"a", Content_Length="x"), "record 0: has the length 'x'"),
        (record("warcinfo", b"a", Content_Length="9" * 30), "record 0: has the length"),
        (record("warcinfo", b"abc", Content_Length="2"), "record 0: is followed by b'c"),
        (record("warcinfo", b"abc", Content_Length="4"), "record 0: is followed by"),
        (record("warcinfo", b"abc", Content_Length="99"), "record 0: has 7 bytes, expected 99"),
        (b"WARC/1.0\r\n" + b"x: y\r\n" * 400_000, "record 0: its header has no end"),
        (b"WARC/1.0\r\nWARC-Type: response", "record 0: its header has no end"),
    ],
)
def test_damage_is_an_error_that_names_the_record(
    tmp_path: Path, content: bytes, found: str
) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.warc, {found}"):
        read_all(path)


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(b"")
    assert read_all(path).rows == []
    (tmp_path / "a.wet.gz").write_bytes(b"")
    with pytest.raises(InputError, match="it is empty"):
        read_all(tmp_path / "a.wet.gz")


def test_wet_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wet", [record("conversion", b"\xff"), record("conversion", b"a")])
    read = read_all(path)
    assert [text for _, text, _ in read.rows] == ["a"]
    assert [(bad.row, bad.reason) for bad in read.bad] == [(0, "its text is not valid UTF-8")]


def test_other_columns_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wet", [record("conversion", b"a")])
    with pytest.raises(InputError, match="its columns are text, id, url, date, language"):
        blocks_of(path, columns=Columns("content", "id", False))


def test_another_version_of_an_extractor_is_refused(tmp_path: Path) -> None:
    file = with_extractor(write(tmp_path / "a.warc", crawl()), "resiliparse")
    assert file.extraction is not None
    assert file.extraction.startswith("resiliparse: fastwarc ")
    older = replace(file, extraction="resiliparse: fastwarc 0.1, resiliparse 0.1")
    (block,) = discover_blocks(file, COLUMNS, 1)
    with pytest.raises(InputError, match=r"a\.warc: the job extracts its text with .* 0\.1; inst"):
        discover_blocks(older, COLUMNS, 1)
    with pytest.raises(InputError, match=r"Other versions may give another text"):
        list(read_block(older, COLUMNS, block))


def test_only_warc_files_have_an_extractor(tmp_path: Path) -> None:
    warc = describe(write(tmp_path / "a.warc", []))
    wet = describe(write(tmp_path / "a.wet", []))
    found = with_extraction([warc, wet], "trafilatura")
    assert [file.extraction is None for file in found] == [False, True]
    assert with_extraction([wet], "resiliparse") == [wet]
    with pytest.raises(UsageError, match=r"--extract trafilatura goes with \.warc"):
        with_extraction([wet], "trafilatura")
