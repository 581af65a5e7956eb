"""CSV and TSV with a header, plain or compressed: one row per record, one block per file.

A record is what Python's csv module reads, as RFC 4180 says: values may be quoted, also in TSV,
and quoted values may hold line ends. All columns are strings. An empty value is null unless it is
quoted.
"""

import csv
import re
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import wanted_columns
from fineshards.sources.compression import read_lines
from fineshards.sources.formats.format import Format, gathered
from fineshards.sources.rows import RowBatch

# In bytes. The csv module needs five times as much memory.
_LONGEST_RECORD = 256 << 20
# The limit of the csv module, 128 KiB for a value, is one of the process.
csv.field_size_limit(2 * _LONGEST_RECORD)


class Csv(Format):
    """Records of values that commas separate."""

    endings: tuple[str, ...] = (".csv",)
    delimiter = ","

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format. All columns are of strings."""
        header, _ = next(_records(file, opened, self.delimiter), ([], []))
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
        rows = _rows(file, opened, self.delimiter, len(header), indices)
        yield from gathered(rows, pa.schema([(name, pa.string()) for name in names]))


class Tsv(Csv):
    """Records of values that tabs separate."""

    endings = (".tsv",)
    delimiter = "\t"


def _rows(
    file: SourceFile, opened: BinaryIO, delimiter: str, count: int, indices: list[int]
) -> Iterator[BadRow | tuple[int, list[str | None], int]]:
    """The values of rows at some places in them."""
    for row, (values, lines) in enumerate(_records(file, opened, delimiter), start=-1):
        if row < 0:
            continue  # the header
        if len(values) != count:
            yield BadRow(row, "", f"has {len(values)} values, expected {count}")
            continue
        cells: list[str | None] = [values[index] for index in indices]
        if "" in cells:
            quoted = _quoted("".join(lines), delimiter)
            cells = [values[index] if quoted[index] else values[index] or None for index in indices]
        yield row, cells, sum(map(len, lines))


def _quoted(record: str, delimiter: str) -> list[bool]:
    """Whether each value of a record is quoted, of which the csv module says nothing."""
    value = rf'(?:"(?:[^"]++|"")*+")?[^{delimiter}]*+(?:{delimiter}|\Z)'
    return [match[0].startswith('"') for match in re.finditer(value, record)]


def _records(
    file: SourceFile, opened: BinaryIO, delimiter: str
) -> Iterator[tuple[list[str], list[str]]]:
    """The values and the lines of each record, of which the first is the header. No blank lines.

    Raises InputError for a file that ends inside a quoted value.
    """
    lines: list[str] = []
    line_number, size, is_at_end = 0, 0, False

    def read() -> Iterator[str]:
        nonlocal line_number, size, is_at_end
        for _, whole in read_lines(file, opened):
            for part in whole.splitlines(keepends=True) if b"\r" in whole else (whole,):
                line_number += 1
                size += len(part)
                # What is not UTF-8 makes one row bad, by `gathered`.
                lines.append(part.decode("utf-8", "surrogateescape"))
                if size > _LONGEST_RECORD:
                    raise InputError(
                        f"{file.path}, line {line_number + 1 - len(lines)}: a record that begins "
                        f"here has more than {_LONGEST_RECORD >> 20} MiB. A quote may be missing; "
                        "fix the file, or exclude it."
                    )
                yield lines[-1]
        is_at_end = True

    for values in csv.reader(read(), delimiter=delimiter):
        if is_at_end:
            raise InputError(
                f"{file.path}, line {line_number + 1 - len(lines)}: a record begins here, and the "
                "file ends inside a quoted value of it. The file is truncated, or a quote is "
                "missing; download it again, or fix it."
            )
        if values:
            yield values, lines
        lines.clear()
        size = 0
