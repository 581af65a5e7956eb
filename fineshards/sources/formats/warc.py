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

import numpy as np
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
from fineshards.sources.formats.page_encoding import header_charset
from fineshards.sources.formats.record_batches import check_columns, rows_of
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, Rows

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
# How much of a record is kept: more than any page that is read.
_KEPT = {"warc": max(HTML_LIMITS.values()) + 2 * _HEADER_LIMIT, "wet": LONGEST}
_PIECE = 1 << 20


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the single block of a file; raises InputError for another column or a first record
    that is none.

    Records can only be found by reading from the start, so the file is not split and `block_bytes`
    has no effect.
    """
    check_columns(file, _SCHEMA, columns)
    if file.format == "warc":
        check_versions(file)
    for _ in _records(file, opened):
        break
    return [Block(file.index, 0, 1, 0, 0, 0, file.size)]


def schema(file: SourceFile, opened: BinaryIO) -> pa.Schema:
    """The types of all columns, which every file has."""
    return _SCHEMA


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a file in order.

    Of WARC these are the `response` records of HTML, of WET the `conversion` records. Raises
    InputError for a file that is truncated or damaged.
    """
    check_columns(file, _SCHEMA, columns)
    if file.format == "warc":
        extractor = check_versions(file)

        def text_of(record: _WarcRecord) -> str | None:
            html, charset = _html(record, HTML_LIMITS[extractor])
            return extract(html, extractor, charset)
    else:
        text_of = _converted
    batch = _PageBatch()
    for record in _records(file, opened):
        if record.type == ("response" if file.format == "warc" else "conversion"):
            batch.add(record, text_of)
        if batch.is_full():
            yield batch.rows(columns)
            batch = _PageBatch()
    yield batch.rows(columns)


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


class _PageBatch:
    """Rows collected until there are enough for a record batch."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._rows: list[tuple[str | None, ...]] = []
        self._bytes = 0
        self._bad: list[BadRow] = []

    def add(self, record: _WarcRecord, text_of: Callable[[_WarcRecord], str | None]) -> None:
        """Adds the row of a record, if it is one."""
        try:
            text = text_of(record)
        except _OtherTypeError:
            return
        except ExtractionError as error:
            self._bad.append(BadRow(record.number, "", str(error), error.kind))
            return
        except UnicodeDecodeError:
            self._bad.append(BadRow(record.number, "", "its text is not valid UTF-8"))
            return
        url = record.header.get("warc-target-uri")
        others = ("warc-date", "warc-identified-content-language")
        self._numbers.append(record.number)
        self._rows.append(
            (
                text,
                record.header.get("warc-record-id"),
                url and url.removeprefix("<").removesuffix(">"),
                *(record.header.get(name) for name in others),
            )
        )
        self._bytes += len(text or "")

    def is_full(self) -> bool:
        return self._bytes >= BATCH_BYTES or len(self._numbers) + len(self._bad) >= BATCH_ROWS

    def rows(self, columns: Columns) -> Rows:
        values = zip(*self._rows, strict=True) if self._rows else [()] * len(_SCHEMA)
        batch = pa.record_batch([list(column) for column in values], schema=_SCHEMA)
        rows = rows_of(batch, np.array(self._numbers, np.int64), columns)
        rows.bad.extend(self._bad)
        return rows


def _converted(record: _WarcRecord) -> str | None:
    """The text of a record of WET; raises UnicodeDecodeError if it is not UTF-8."""
    return record.body.decode() or None


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


def _records(file: SourceFile, opened: BinaryIO) -> Iterator[_WarcRecord]:
    """Yields all records, with the beginning of their content."""
    number = 0
    with explained(file, lambda: f"record {number}"):
        stream = open_text(file, opened)
        while (record := _record(file, stream, number)) is not None:
            yield record
            number += 1


def _record(file: SourceFile, stream: BinaryIO, number: int) -> _WarcRecord | None:
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
    if file.format == "wet" and length.isdecimal() and int(length[:19]) > LONGEST:
        raise InputError(
            f"{file.path}, record {number}: has {int(length[:19]):,} bytes of text, and the most "
            f"that is read are {LONGEST:,}. Exclude the file."
        )
    if not line or not re.fullmatch(r"[0-9]{1,18}", length):
        raise damaged("its header has no end" if not line else f"has the length {length!r}")
    body, left = _start_of(stream, int(length), _KEPT[file.format])
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
