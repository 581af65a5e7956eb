"""Text in UTF-8, plain or compressed: CSV and TSV with a header, and files of text alone.

A record of CSV is what Python's csv module reads, as RFC 4180 says: values may be quoted, and
quoted values may hold line ends. In TSV quotes are text. `--quoting` says otherwise for both. All
columns are strings. An empty value is null unless it is quoted.

A file of text alone is one document, whose id is the path of the file below the input's root; or
what `--text_separator` makes of it, whose ids also have `#` and the number of the row.
"""

import codecs
import csv
import itertools
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import wanted_columns
from fineshards.sources.compression import (
    LONGEST,
    bounded,
    check_beginning,
    explained,
    open_text,
    read_lines,
    read_text,
    wide_encoding,
)
from fineshards.sources.formats.format import Format, gathered
from fineshards.sources.rows import RowBatch

# In bytes. The csv module needs five times as much memory.
_LONGEST_RECORD = 256 << 20
# The limit of the csv module, 128 KiB for a value, is one of the process.
csv.field_size_limit(2 * _LONGEST_RECORD)


class Csv(Format):
    """Records of values that commas separate."""

    endings: tuple[str, ...] = (".csv",)
    delimiter, quoting = ",", "quotes"

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format. All columns are of strings."""
        header, _ = next(self._records(file, opened), ([], []))
        if not header:
            raise InputError(
                f"{file.path}: has no header that can be read. Its first line must name the "
                "columns; add one, or exclude the file."
            )
        try:
            ",".join(header).encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{file.path}: its header is not valid UTF-8: {header!r:.100}. "
                "Convert the file to UTF-8."
            ) from error
        return pa.schema([(name, pa.string()) for name in header])

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format. Rows are numbered from 0 after the header; blank lines are skipped.

        A record with another number of values than the header is a bad row.
        """
        header = self.schema(file, opened)
        names = wanted_columns(header, columns)
        indices = [header.names.index(name) for name in names]
        opened.seek(0)
        rows = self._rows(file, opened, len(header), indices)
        yield from gathered(rows, pa.schema([(name, pa.string()) for name in names]))

    def _has_quotes(self, file: SourceFile) -> bool:
        return (file.extraction or self.quoting) == "quotes"

    def _rows(
        self, file: SourceFile, opened: BinaryIO, count: int, indices: list[int]
    ) -> Iterator[BadRow | tuple[int, list[str | None], int]]:
        """The values of rows at some places in them."""
        has_quotes = self._has_quotes(file)
        for row, (values, lines) in enumerate(self._records(file, opened), start=-1):
            if row < 0:
                continue  # the header
            if len(values) != count:
                yield BadRow(row, "", f"has {len(values)} values, expected {count}")
                continue
            cells: list[str | None] = [values[index] for index in indices]
            if "" in cells:
                quoted = _quoted("".join(lines), self.delimiter) if has_quotes else [False] * count
                cells = [values[index] or ("" if quoted[index] else None) for index in indices]
            yield row, cells, sum(map(len, lines))

    def _records(self, file: SourceFile, opened: BinaryIO) -> Iterator[tuple[list[str], list[str]]]:
        """The values and the lines of each record, of which the first is the header.

        Blank lines are skipped. Raises InputError where a quote that opens a value is not closed at
        the end of one: it may be text, and the lines after it would be part of the value.
        """
        lines: list[str] = []
        line_number, size = 0, 0

        def read() -> Iterator[str]:
            nonlocal line_number, size
            for line_number, line in _lines(file, opened):  # noqa: B007 - the message names it
                size += len(line)
                # What is not UTF-8 makes one row bad, by `gathered`.
                lines.append(line.decode("utf-8", "surrogateescape"))
                if size > _LONGEST_RECORD:
                    raise csv.Error(f"it has more than {_LONGEST_RECORD >> 20} MiB")
                yield lines[-1]

        quoting: Any = csv.QUOTE_MINIMAL if self._has_quotes(file) else csv.QUOTE_NONE
        try:
            for values in csv.reader(
                read(), delimiter=self.delimiter, quoting=quoting, strict=True
            ):
                if values:
                    yield values, lines
                lines.clear()
                size = 0
        except csv.Error as error:
            raise InputError(
                f"{file.path}, line {line_number + 1 - len(lines)}: a record that begins here "
                f"cannot be read: {error}. If a value begins with a quote that is text, give "
                "--quoting none; else the file is damaged: download it again, or fix it."
            ) from error


class Tsv(Csv):
    """Records of values that tabs separate."""

    endings = (".tsv",)
    delimiter, quoting = "\t", "none"


def _quoted(record: str, delimiter: str) -> list[bool]:
    """Whether each value of a record is quoted, of which the csv module says nothing."""
    value = rf'(?:"(?:[^"]++|"")*+")?[^{delimiter}]*+(?:{delimiter}|\Z)'
    return [match[0].startswith('"') for match in re.finditer(value, record)]


_SCHEMA = pa.schema([("text", pa.large_string()), ("id", pa.string())])
_CHUNK = 1 << 20


class Text(Format):
    """Files of text."""

    endings = (".txt",)
    has_columns = False

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format."""
        open_text(file, opened)
        return _SCHEMA

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format. A text that is not valid UTF-8 is a bad row; a blank piece has no text."""
        yield from gathered(_texts(file, opened), _SCHEMA)


def _texts(
    file: SourceFile, opened: BinaryIO
) -> Iterator[BadRow | tuple[int, list[str | None], int]]:
    name = file.name.partition("?")[0] if file.path.startswith("http") else file.name
    is_whole = file.extraction is None
    for row, (line, content) in enumerate(_pieces(file, opened)):
        try:
            text = content.decode() if is_whole or content.strip() else None
        except UnicodeDecodeError as error:
            reason = f"its 'text' is not valid UTF-8: byte 0x{content[error.start]:02X}"
            if is_whole and (encoding := wide_encoding(content[:4])):
                reason = f"its text is in {encoding}, expected UTF-8"
            line += content.count(b"\n", 0, error.start)
            yield BadRow(row, f"line {line}", reason)
        else:
            yield row, [text, name if is_whole else f"{name}#{row}"], len(content)


def _pieces(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """What `--text_separator` makes of a file, with the number of the line where each begins."""
    if file.extraction is None:
        with explained(file, lambda: "the beginning"):
            yield 1, read_text(file, opened).removeprefix(codecs.BOM_UTF8)
    elif file.extraction == "line":
        for number, line in _lines(file, opened):
            yield number, line.rstrip(b"\r\n")
    elif file.extraction == "blank_line":
        yield from _paragraphs(file, opened)
    else:
        yield from _between(file, opened, file.extraction.encode())


def _lines(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1; a CR alone ends a line too."""
    number = 0
    for _, whole in read_lines(file, opened):
        for line in whole.splitlines(keepends=True) if b"\r" in whole else (whole,):
            number += 1
            yield number, line


def _paragraphs(file: SourceFile, opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Runs of lines that are not blank, without the line end of the last one."""
    lines = _lines(file, opened)
    for is_blank, run in itertools.groupby(lines, lambda line: not line[1].strip()):
        if not is_blank:
            number, first = next(run)
            rest = (line for _, line in run)
            text = bounded(file, f"the text from line {number}", itertools.chain([first], rest))
            yield number, text.rstrip(b"\r\n")


def _between(file: SourceFile, opened: BinaryIO, separator: bytes) -> Iterator[tuple[int, bytes]]:
    """What stands between separators, with their exact bytes."""
    number = 1
    with explained(file, lambda: f"line {number}"):
        stream = open_text(file, opened)
        chunk = stream.read(_CHUNK)
        check_beginning(file, chunk[:4])
        chunk, rest = chunk.removeprefix(codecs.BOM_UTF8), bytearray()
        while chunk:
            rest += chunk
            if rest.find(separator, max(len(rest) - len(chunk) - len(separator), 0)) >= 0:
                *pieces, rest = rest.split(separator)
                for piece in pieces:
                    yield number, bytes(piece)
                    number += piece.count(b"\n") + separator.count(b"\n")
            if len(rest) > LONGEST:
                bounded(file, f"the text from line {number}", [rest])  # raises
            chunk = stream.read(_CHUNK)
        if rest:
            yield number, bytes(rest)
