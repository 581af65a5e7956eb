"""Text in UTF-8, plain or compressed: CSV and TSV with a header, and files of text alone.

A record of CSV is what Python's csv module reads, as RFC 4180 says: values may be quoted, and
quoted values may hold line ends. In TSV quotes are text. `--quoting` says otherwise for both. All
columns are strings. An empty value is null unless it is quoted.

A file of text alone is one document, whose id is the path of the file below the input's root.
"""

import csv
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import wanted_columns
from fineshards.sources.compression import (
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
            for _, whole in read_lines(file, opened):
                for part in whole.splitlines(keepends=True) if b"\r" in whole else (whole,):
                    line_number += 1
                    size += len(part)
                    # What is not UTF-8 makes one row bad, by `gathered`.
                    lines.append(part.decode("utf-8", "surrogateescape"))
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
        """See Format. The row is a bad one if it is not valid UTF-8."""
        with explained(file, lambda: "the beginning"):
            content = read_text(file, opened)
        row: BadRow | tuple[int, list[str], int]
        name = file.name.partition("?")[0] if file.path.startswith("http") else file.name
        try:
            row = 0, [content.decode("utf-8-sig"), name], len(content)
        except UnicodeDecodeError as error:
            reason = f"its 'text' is not valid UTF-8: byte 0x{content[error.start]:02X}"
            if encoding := wide_encoding(content[:4]):
                reason = f"its text is in {encoding}, expected UTF-8"
            row = BadRow(0, "", reason)
        yield from gathered([row], _SCHEMA)
