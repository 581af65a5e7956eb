"""Plain text in UTF-8, plain or compressed: one document per file, whose id is the file's name."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.compression import explained, open_text, read_text, wide_encoding
from fineshards.sources.formats.format import Format, file_name, gathered
from fineshards.sources.rows import RowBatch

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
        try:
            row = 0, [content.decode("utf-8-sig"), file_name(file.path)], len(content)
        except UnicodeDecodeError:
            encoding = wide_encoding(content[:4])
            reason = f"its text is in {encoding}, expected UTF-8"
            row = BadRow(0, "", reason if encoding else "its 'text' is not valid UTF-8")
        yield from gathered([row], _SCHEMA)
