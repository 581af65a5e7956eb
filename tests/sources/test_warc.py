"""WARC and WET: a row per page, with the number of its record; nothing is left out unseen."""

import gzip
import json
import random
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard
from msgspec.structs import replace
from support.fresh_interpreter import run_program
from support.source_files import Read, add, blocks_of, describe, read_all

from fineshards.cli.cli import main
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.formats.extraction import (
    DEPTH_LIMIT,
    HTML_LIMITS,
    extract,
    with_extraction,
)
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.storage.open import open_storage

COLUMNS = Columns("text", "id", False, "url", others=("url", "date", "language"))
SENTENCE = "the rain in Spain stays mainly in the plain and nobody has counted the drops"
WORDS = SENTENCE.split()


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
    paragraphs = "".join(f"<p>{word} {SENTENCE}.</p>" for word in words)
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
        assert all(f"page{n}-{each} {SENTENCE}." in text for each in range(4))
        assert "<" not in text
    urls = [f"https://host{n % 3}.example/{n}" for n in range(1, 9)]
    assert read.others["url"] == urls
    assert read.others["date"] == ["2026-11-22T00:00:00Z"] * 8
    assert read.others["language"] == [None] * 8


@pytest.mark.parametrize("dictionary", [None, "plain", "compressed"])
def test_zstd_files_are_read_with_the_dictionary_they_begin_with(
    tmp_path: Path, dictionary: str | None
) -> None:
    """As the IIPC specifies .warc.zst: a frame per record, after a skippable frame."""
    records, begins = crawl() * 20, b""
    compressor = zstandard.ZstdCompressor()
    if dictionary is not None:
        trained = zstandard.train_dictionary(4096, records)
        content = trained.as_bytes()
        if dictionary == "compressed":
            content = compressor.compress(content)
        begins = struct.pack("<II", 0x184D2A5D, len(content)) + content
        compressor = zstandard.ZstdCompressor(dict_data=trained)
    path = tmp_path / "a.warc.zst"
    path.write_bytes(begins + b"".join(map(compressor.compress, records)))
    plain = write(tmp_path / "a.warc", records)
    files = [with_extractor(each, "resiliparse") for each in (path, plain)]
    assert read_with(files[0]) == read_with(files[1])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="damaged or truncated"):
        read_with(with_extractor(path, "resiliparse"))


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


def test_the_encoding_of_the_http_header_counts(tmp_path: Path) -> None:
    text = "Широкая электрификация южных губерний"
    html = f"<html><head></head><body><p>{text}</p></body></html>".encode("koi8-r")
    records = [response(html, kind="text/html; charset=koi8-r")]
    read = read_with(with_extractor(write(tmp_path / "a.warc", records), "resiliparse"))
    assert [row for _, row, _ in read.rows] == [text]


def test_responses_without_a_type_are_not_pages_and_errors_of_servers_are(tmp_path: Path) -> None:
    """As documented: what a page says, and not its status, decides."""
    missing = response(page(["lost"])).replace(b"HTTP/1.1 200 OK", b"HTTP/1.1 404 No")
    untyped = response(page(["one"])).replace(b"Content-Type: text", b"Content-Xype: text")
    read = read_with(with_extractor(write(tmp_path / "a.warc", [missing, untyped]), "resiliparse"))
    assert [number for number, _, _ in read.rows] == [0]
    assert read.bad == []


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


def test_a_body_that_was_stored_decoded_is_read_as_it_is(tmp_path: Path) -> None:
    """As in CC-NEWS before May 2019, and all other ways in which header and body disagree."""
    html = page(["one"] * 3)
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(html), html)
    zipped = gzip.compress(html)
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    raw = deflate.compress(html) + deflate.flush()
    names = ("gzip", "br", "deflate", "zstd", "utf-8")
    both = {"Content_Encoding": "gzip", "Transfer_Encoding": "chunked"}
    records = [
        *(response(html, Content_Encoding=name) for name in names),
        response(b"\xef\xbb\xbf\r\n" + html, Transfer_Encoding="chunked"),
        *(response(body, **both) for body in (html, zipped, chunked)),
        response(raw, Content_Encoding="deflate"),
        response(zlib.compress(html), Content_Encoding="gzip"),
        response(zipped, Content_Encoding="x-gzip"),
        response(raw, Content_Encoding="deflate", Transfer_Encoding="chunked"),
        response(
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(raw), raw), **both | {"Content_Encoding": "deflate"}
        ),
        response(html),
    ]
    read = read_with(with_extractor(write(tmp_path / "a.warc", records), "resiliparse"))
    assert (len(read.rows), read.bad) == (15, [])
    assert len({text for _, text, _ in read.rows}) == 1
    assert read.labels["http_body"] == [
        *["not compressed"] * 5,
        *("not chunked", "not chunked, not compressed", "not chunked", "not compressed"),
        *["compressed otherwise"] * 5,
        None,
    ]
    # What is damaged stays so.
    damaged = [
        response(zipped[:20] + b"x" + zipped[21:], Content_Encoding="gzip"),
        response(chunked[:-40], Transfer_Encoding="chunked"),
        response(b"BZh9 is no page", Content_Encoding="gzip"),
        response(raw[:-9], Content_Encoding="deflate"),
    ]
    read = read_with(with_extractor(write(tmp_path / "b.warc", damaged), "resiliparse"))
    assert (read.rows, [bad.unextracted for bad in read.bad]) == ([], ["bad_response"] * 4)


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
def test_a_page_beyond_the_limits_is_left_out_with_a_reason(tmp_path: Path, extractor: str) -> None:
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
    kinds = [*["too_large"] * 3, "too_deep", "bad_response"]
    assert [bad.unextracted for bad in read.bad] == kinds


def test_pages_that_cannot_be_extracted_are_counted_and_do_not_end_a_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same with a recipe; the rows balance, and verify finds nothing wrong."""
    records = [
        *crawl(),
        response(b"<div>" * (DEPTH_LIMIT + 1) + b"deep"),
        response(b"not gzip", Content_Encoding="gzip"),
        response(b"zz\r\nabc", Transfer_Encoding="chunked"),
        response(page(["last"] * 3)),
    ]
    write(tmp_path / "a.warc", records)
    for name, more in {"plain": [], "steps": ["--dedup=exact"]}.items():
        out = tmp_path / name
        flags = [f"--input={tmp_path}/a.warc", f"--output={out}"]
        assert main(["build", *flags, *more]) == 0
        said = "3 pages whose text cannot be extracted"
        assert said in capfd.readouterr().out
        manifest = Manifest.load(open_storage(str(out)))
        counts = manifest.counts()
        assert (counts.rows, counts.documents, counts.rejected) == (12, 9, 0)
        assert counts.balances()
        assert [(each.reason, each.rows) for each in counts.unextracted] == [
            ("bad_response", 2),
            ("too_deep", 1),
        ]
        (listed,) = (out / "metadata" / "rejected").iterdir()
        rows = [json.loads(line) for line in listed.read_text().splitlines()]
        assert [row["row"] for row in rows] == [25, 26, 27]
        assert main(["verify", str(out), "--sample=100%"]) == 0
        assert main(["inspect", str(out)]) == 0
        assert "of 3 pages, whose text cannot be extracted (2 bad_" in capfd.readouterr().out
        listed.write_text("")
        assert main(["verify", str(out)]) == 1


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
    records = [record("warcinfo", b"x: y"), record(kind, b"some text", 1)]
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
        (b"<html>", "after its beginning: .*Invalid WARC header"),
        (record("warcinfo", b"a") + b"garbage\r\n", "after record 0: .*Invalid WARC header"),
        (record("warcinfo", b"a", Content_Length="x"), "after record 0: .*followed by b'a"),
        (record("warcinfo", b"a", Content_Length="9" * 30), "after record 0: .*followed by"),
        (record("warcinfo", b"abc", Content_Length="2"), "after record 0: .*followed by b'c"),
        *(
            (
                record("warcinfo", b"abc", Content_Length=str(length)) + record("warcinfo", b"abc"),
                "after record 0: .*not two line ends",
            )
            for length in (4, 7, len(record("warcinfo", b"abc")) + 6)
        ),
        (record("warcinfo", b"abc", Content_Length="99"), "record 0: has 7 bytes, expected 99"),
        (b"WARC/1.0\r\n" + b"x: y\r\n" * 400_000, "after its beginning: .*header length"),
        (b"WARC/1.0\r\nWARC-Type: response", "after record 0: .*followed by b''"),
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


def test_texts_of_earlier_rules_are_not_mixed_with_those_of_these(tmp_path: Path) -> None:
    file = with_extractor(write(tmp_path / "a.warc", crawl()), "resiliparse")
    assert file.extraction is not None
    earlier = replace(file, extraction=file.extraction.rpartition(", rules")[0])
    assert earlier != file
    with pytest.raises(InputError, match=r"version of fineshards that started it if the rules"):
        discover_blocks(earlier, COLUMNS, 1)


def test_only_warc_files_have_an_extractor(tmp_path: Path) -> None:
    warc = describe(write(tmp_path / "a.warc", []))
    wet = describe(write(tmp_path / "a.wet", []))
    found = with_extraction([warc, wet], "trafilatura")
    assert [file.extraction is None for file in found] == [False, True]
    assert with_extraction([wet], "resiliparse") == [wet]
    with pytest.raises(UsageError, match=r"--extract 'trafilatura' goes with \.warc"):
        with_extraction([wet], "trafilatura")


def test_a_library_that_is_missing_is_named_with_the_file_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"")
    done = run_program(
        "import sys\nfrom fineshards.cli.cli import main\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'fastwarc': raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        f"sys.exit(main(['build', '--input={tmp_path}/a.warc', '--output={tmp_path}/out']))"
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"fineshards: {tmp_path}/a.warc: fastwarc is not installed. "
        "Install it with: pip install 'fineshards[warc]'\n"
    )
