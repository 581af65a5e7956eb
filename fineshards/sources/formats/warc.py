"""WARC and WET files, plain or gzip: a row per page of HTML, or per text; one block per file.

The number of a row is that of its record in the file, counted over all records from 0, so that it
is found again. Records are cut here, because the libraries take a file that is cut off, or a record
that is shorter than its header says, for the end of the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

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
    header_charset,
)
from fineshards.sources.formats.format import Format, gathered
from fineshards.sources.rows import RowBatch

_SCHEMA = pa.schema(
    [
        ("text", pa.large_string()),
        ("id", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("language", pa.string()),
    ]
)
_HTML = ("text/html", "application/xhtml+xml")
_VERSION = re.compile(rb"WARC/[0-9]+\.[0-9]+")
# Of a record's header, and of the HTTP header in it.
_HEADER_LIMIT = 1 << 20
_PIECE = 1 << 20


class Warc(Format):
    """Pages of HTML, of which one of two libraries makes the text."""

    name = "warc"
    endings: tuple[str, ...] = (".warc",)
    compressions = ("none", "gzip")
    has_columns = False
    extracts = True
    # The type of the records that are rows, and how much of one is kept: more than any page.
    record_type = "response"
    kept_bytes = max(HTML_LIMITS.values()) + 2 * _HEADER_LIMIT

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format. Raises InputError for a first record that is none."""
        if self.extracts:
            check_versions(file)
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
            if record.type != self.record_type:
                continue
            try:
                text = text_of(record)
            except _OtherTypeError:
                continue
            except ExtractionError as error:
                yield BadRow(record.number, "", str(error), error.kind)
                continue
            except UnicodeDecodeError:
                yield BadRow(record.number, "", "its text is not valid UTF-8")
                continue
            url = record.header.get("warc-target-uri")
            values = [text, record.header.get("warc-record-id")]
            values.append(url and url.removeprefix("<").removesuffix(">"))
            others = ("warc-date", "warc-identified-content-language")
            values += [record.header.get(name) for name in others]
            yield record.number, values, len(text or "")

    def text_of(self, file: SourceFile) -> Callable[[_WarcRecord], str | None]:
        """Returns a function of a record that gives its text."""
        extractor = check_versions(file)

        def extracted(record: _WarcRecord) -> str | None:
            html, charset = _html(record, HTML_LIMITS[extractor])
            return extract(html, extractor, charset)

        return extracted

    def _records(self, file: SourceFile, opened: BinaryIO) -> Iterator[_WarcRecord]:
        """Yields all records, with the beginning of their content."""
        number = 0
        with explained(file, lambda: f"record {number}"):
            stream = open_text(file, opened)
            while (record := _record(file, stream, number, self.kept_bytes)) is not None:
                yield record
                number += 1


class Wet(Warc):
    """Texts that Common Crawl has made of pages."""

    name = "wet"
    endings = (".wet",)
    extracts = False
    record_type = "conversion"
    kept_bytes = LONGEST

    def text_of(self, file: SourceFile) -> Callable[[_WarcRecord], str | None]:
        """See Warc. The function raises UnicodeDecodeError for a text that is not UTF-8."""
        return lambda record: record.body.decode() or None


@dataclass(frozen=True, slots=True)
class _WarcRecord:
    """A record of a file. number: among all records. body: its content, of `length` bytes, or the
    beginning of a large one.

    header: the names are in lower case. raw: the header as it is in the file.
    """

    number: int
    header: dict[str, str]
    raw: bytes
    body: bytes
    length: int

    @property
    def type(self) -> str:
        return self.header.get("warc-type", "").lower()


class _OtherTypeError(Exception):
    """A response that is not HTML."""


@naming_the_extra()
def _html(record: _WarcRecord, limit: int) -> tuple[bytes, str | None]:
    """The HTML of a response, and the encoding that its HTTP header names.

    Raises _OtherTypeError if it is something else.
    """
    from fastwarc.warc import ArchiveIterator

    def parsed(decode: Literal["none", "all"]) -> Any:
        whole = io.BytesIO(record.raw + record.body)
        return next(
            ArchiveIterator(whole, parse_http=True, auto_decode=decode, stream_detect=False)
        )

    try:
        response = parsed("none")
        if (response.http_content_type or "").lower() not in _HTML:
            raise _OtherTypeError
        if record.length > limit + _HEADER_LIMIT:
            raise ExtractionError("too_large", _too_large(limit))
        charset = header_charset(response.http_headers.get("Content-Type"))
        html: bytes = parsed("all").reader.read(limit + 1)
    except (OSError, ValueError, StopIteration) as error:
        kind = type(error).__name__  # what it says may quote the page
        message = f"its HTTP response cannot be read ({kind})"
        raise ExtractionError("bad_response", message) from error
    if len(html) > limit:
        raise ExtractionError("too_large", _too_large(limit))
    return html, charset


def _too_large(limit: int) -> str:
    return f"its HTML has more than {limit:,} bytes"


def _record(file: SourceFile, stream: BinaryIO, number: int, kept_bytes: int) -> _WarcRecord | None:
    def damaged(found: str) -> InputError:
        return InputError(
            f"{file.path}, record {number}: {found}. The file is damaged, truncated or in another "
            "format; download it again, or exclude it."
        )

    first = stream.readline(_HEADER_LIMIT)
    if not first:
        return None
    if not _VERSION.fullmatch(first.strip()):
        raise damaged(f"does not begin as a WARC record, but with {first[:40]!r}")
    lines, size = [first], 0
    while (line := stream.readline(_HEADER_LIMIT)).strip():
        lines.append(line)
        size += len(line)
        if size > _HEADER_LIMIT:
            raise damaged("its header has no end")
    header = _header(lines[1:])
    length = header.get("content-length", "")
    if kept_bytes == LONGEST and length.isdecimal() and int(length[:19]) > LONGEST:
        raise InputError(
            f"{file.path}, record {number}: has {int(length[:19]):,} bytes of text, and the most "
            f"that is read are {LONGEST:,}. Exclude the file."
        )
    if not line or not re.fullmatch(r"[0-9]{1,18}", length):
        raise damaged("its header has no end" if not line else f"has the length {length!r}")
    body, left = _start_of(stream, int(length), kept_bytes)
    if left:
        raise damaged(f"has {int(length) - left:,} bytes, expected {int(length):,}")
    if (end := stream.read(4)) != b"\r\n\r\n":
        raise damaged(f"is followed by {end!r}, expected two line ends")
    return _WarcRecord(number, header, b"".join([*lines, line]), body, int(length))


def _header(lines: list[bytes]) -> dict[str, str]:
    """The fields of a header, by name; of several with the same name the first."""
    header: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        header.setdefault(name.strip().lower(), value.strip())
    return header


def _start_of(stream: BinaryIO, length: int, limit: int) -> tuple[bytes, int]:
    """The first bytes of a record's content, all of which is read; and how many are missing."""
    kept: list[bytes] = []
    size, left = 0, length
    while left and (piece := stream.read(min(_PIECE, left))):
        left -= len(piece)
        if size < limit:
            kept.append(piece)
            size += len(piece)
    return b"".join(kept), left
