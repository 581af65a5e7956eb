"""WARC and WET files, plain, gzip or zstd: a row per page of HTML, or per text; one block per file.

The number of a row is that of its record in the file, counted over all records from 0, so that it
is found again.
"""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.extras import naming_the_extra
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.compression import LONGEST, explained, open_text
from fineshards.sources.formats.extraction import (
    HTML_LIMITS,
    ExtractionError,
    check_versions,
    extract,
)
from fineshards.sources.formats.format import Format, gathered
from fineshards.sources.rows import RowBatch

_COLUMNS = ("id", "url", "date", "language", "http_body")
_SCHEMA = pa.schema([("text", pa.large_string()), *((name, pa.string()) for name in _COLUMNS)])
_HTML = ("text/html", "application/xhtml+xml")
# Most of a record's header, and of the HTTP header in it.
_HEADER_LIMIT = 1 << 20
_END_OF_RECORD = b"\r\n\r\n"


class Warc(Format):
    """Pages of HTML, of which one of two libraries makes the text."""

    endings: tuple[str, ...] = (".warc",)
    compressions = ("none", "gzip", "zstd")
    has_columns = False
    labels = ("language", "http_body")
    # The type of the records that are rows, and how much of one is kept: more than any page.
    record_type = "response"
    kept_bytes = max(HTML_LIMITS.values()) + 2 * _HEADER_LIMIT

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format. Raises InputError for a first record that is none."""
        self.text_of(file)
        for _ in self._records(file, opened):
            break
        return _SCHEMA

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format. Rows are the `response` records of HTML; of WET, `conversion` records."""
        yield from gathered(self._rows(file, opened), _SCHEMA)

    def _rows(
        self, file: SourceFile, opened: BinaryIO
    ) -> Iterator[BadRow | tuple[int, list[str | None], int]]:
        text_of = self.text_of(file)
        for record in self._records(file, opened):
            if record.header.get("WARC-Type", "").lower() != self.record_type:
                continue
            try:
                text, http_body = text_of(record)
            except _OtherTypeError:
                continue
            except ExtractionError as error:
                yield BadRow(record.number, "", str(error), error.kind)
                continue
            except UnicodeDecodeError:
                yield BadRow(record.number, "", "its text is not valid UTF-8")
                continue
            names = ("Record-ID", "Target-URI", "Date", "Identified-Content-Language")
            values = [record.header.get(f"WARC-{name}") for name in names]
            values[1] = values[1] and values[1].removeprefix("<").removesuffix(">")
            yield record.number, [text, *values, http_body], len(text or "")

    def text_of(self, file: SourceFile) -> Callable[[_WarcRecord], tuple[str | None, str | None]]:
        """Returns a function of a record: its text, and what of its body is not as it says."""
        extractor = check_versions(file)

        def extracted(record: _WarcRecord) -> tuple[str | None, str | None]:
            html, charset, http_body = _html(record, HTML_LIMITS[extractor])
            return extract(html, extractor, charset), http_body

        return extracted

    def _records(self, file: SourceFile, opened: BinaryIO) -> Iterator[_WarcRecord]:
        """Yields all records, with the beginning of their content."""
        number = -1
        with explained(file, lambda: f"record {number}" if number >= 0 else "its beginning"):
            stream = _Stepped(open_text(file, opened))
            for number, record in enumerate(_archive(stream)):
                stream.left, stream.end = record.content_length, None
                body = record.reader.read(min(self.kept_bytes, record.content_length))
                there = len(body) + record.reader.consume()
                if there < record.content_length:
                    raise InputError(
                        f"{file.path}, record {number}: has {there:,} bytes, expected "
                        f"{record.content_length:,}. The file is damaged or truncated; download it "
                        "again, or exclude it."
                    )
                if stream.end is None:
                    stream.read(0)
                if stream.end != _END_OF_RECORD:
                    raise EOFError(f"its content is followed by {stream.end!r}, not two line ends")
                stream.lines = 0
                yield _WarcRecord(number, record.headers, body, record.content_length)
            if stream.lines:
                raise EOFError("it ends inside a record")


class Wet(Warc):
    """Texts that Common Crawl has made of pages."""

    endings = (".wet",)
    record_type = "conversion"
    kept_bytes = LONGEST

    def text_of(self, file: SourceFile) -> Callable[[_WarcRecord], tuple[str | None, str | None]]:
        """See Warc. The function raises UnicodeDecodeError for a text that is not UTF-8."""

        def whole(record: _WarcRecord) -> tuple[str | None, str | None]:
            if record.length > LONGEST:
                raise ExtractionError("too_large", f"its text has more than {LONGEST:,} bytes")
            return record.body.decode() or None, None

        return whole


class _WarcRecord(NamedTuple):
    """A record of a file. number: among all records. header: its fields, by names of any case.

    body: its content, of `length` bytes, or the beginning of a large one.
    """

    number: int
    header: Any
    body: bytes
    length: int


class _Stepped:
    """A stream that fastwarc reads no further than a header, by lines, or a record's content.

    So what follows the content can be compared: fastwarc takes any line ends, and a file that is
    cut off, for whole. left: bytes of content that are left. end: what follows the content, once it
    is read. lines: of a header, so far.
    """

    end: bytes | None = b""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._at, self.left, self.lines = stream, 0, 0, 0

    def read(self, size: int) -> bytes:
        if self.left:
            content = self._stream.read(min(size, self.left))
            self.left -= len(content)
        elif self.end is None:
            content = self.end = self._stream.read(len(_END_OF_RECORD))
        else:
            content = self._stream.readline(size)
            self.lines += bool(content)
        self._at += len(content)
        return content

    def tell(self) -> int:
        return self._at


@naming_the_extra()
def _archive(stream: Any) -> Any:
    """The records of a stream, of fastwarc."""
    from fastwarc.warc import ArchiveIterator

    return ArchiveIterator(
        stream, parse_http=False, stream_detect=False, max_header_len=_HEADER_LIMIT
    )


def _decoded_body(parsed: Callable[[str], Any], size: int) -> tuple[bytes, str | None]:
    """The body of a response, decoded as its header says, else in another way that gives markup.

    Also returns what is not as the header says; None where all is. Crawls of 2015, and CC-NEWS
    before May 2019, have decoded bodies with the first header. Some servers send raw deflate, or
    call gzip x-gzip; browsers read both.
    """
    try:
        return bytes(parsed("all").reader.read(size)), None
    except (OSError, ValueError):
        stored_so = {"content": "not chunked", "transfer": "not compressed"}
        for decode, how in (stored_so | {"none": "not chunked, not compressed"}).items():
            with suppress(OSError, ValueError):
                raw = bytes(parsed(decode).reader.read(size))
                for body, kind in ((raw, how), (_inflated(raw, size), "compressed otherwise")):
                    if body.removeprefix(BOM_UTF8).lstrip().startswith(b"<"):
                        return body, kind
        raise


def _inflated(body: bytes, size: int) -> bytes:
    """The first bytes of what is gzip, zlib or raw deflate; empty for anything else."""
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        stream = zlib.decompressobj(bits)
        with suppress(zlib.error):
            content = stream.decompress(body, size)
            if stream.eof or len(content) == size:
                return content
    return b""


class _OtherTypeError(Exception):
    """A response that is not HTML."""


@naming_the_extra()
def _html(record: _WarcRecord, limit: int) -> tuple[bytes, str | None, str | None]:
    """The HTML of a response, the encoding that its HTTP header names, and how its body differs.

    Raises _OtherTypeError if it is something else.
    """
    from fastwarc.warc import WarcRecord

    def parsed(decode: Any) -> Any:
        page = WarcRecord()
        page.set_bytes_content(record.body)
        page.is_http = True
        page.parse_http(auto_decode=decode)
        return page

    try:
        response = parsed("none")
        if (response.http_content_type or "").lower() not in _HTML:
            raise _OtherTypeError
        is_cut = record.length > limit + _HEADER_LIMIT
        html, http_body = (b"", None) if is_cut else _decoded_body(parsed, limit + 1)
    except (OSError, ValueError) as error:
        kind = type(error).__name__  # what it says may quote the page
        message = f"its HTTP response cannot be read ({kind})"
        raise ExtractionError("bad_response", message) from error
    if is_cut or len(html) > limit:
        raise ExtractionError("too_large", f"its HTML has more than {limit:,} bytes")
    return html, response.http_charset, http_body
