"""Parquet files: opened in the one way that is safe when the process may end soon, and written."""

import io
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import OutputError


def open_parquet(
    opened: BinaryIO, buffer_size: int = 0, footer: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Opens a Parquet file with checksums verified; read it with `use_threads=False`.

    All reading then happens in the calling thread. Arrow's own threads may release `opened` long
    after they have returned its data. A process that is ending by then may abort or hang
    (https://github.com/apache/arrow/issues/33975, 34314, 50482).

    buffer_size: bytes per read of a column; 0 reads it whole. footer: the file's footer, if it is
    known. Raises pyarrow's errors.
    """
    return pq.ParquetFile(
        opened,
        metadata=footer,
        buffer_size=buffer_size,
        page_checksum_verification=True,
        pre_buffer=False,
    )


def read_table(content: bytes, path: str, schema: pa.Schema) -> pa.Table:
    """The table of a Parquet file; raises OutputError, with its path, if it is not of the schema.

    Columns that may be null may be missing.
    """
    try:
        return completed(open_parquet(io.BytesIO(content)).read(use_threads=False), schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, error) from error


def completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the last columns of a schema too, which may be null, if they are missing."""
    for field in schema:
        if field.nullable and field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.cast(schema)


def damaged(path: str, error: object) -> OutputError:
    """What to raise for a table that cannot be read, or has other columns."""
    return OutputError(
        f"{path} is damaged: {error}. Fix it with fineshards repair, or copy it again."
    )


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file, whose pages have checksums."""
    opened = io.BytesIO()
    with pq.ParquetWriter(
        opened,
        table.schema.remove_metadata(),
        compression="zstd",
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table.replace_schema_metadata(None))
    return opened.getvalue()
