"""Parquet files: opened in the one way that is safe when the process may end soon, and written."""

from __future__ import annotations

import io
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq


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
