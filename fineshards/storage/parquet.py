"""Parquet files, opened in the one way that is safe where a process may soon end."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow.parquet as pq


def open_parquet(opened: BinaryIO, buffer_size: int = 0) -> pq.ParquetFile:
    """A parquet file whose checksums are checked, to be read with `use_threads=False`.

    It is then read in the thread that asks and in no other. Arrow's own threads may let go of
    `opened` long after they have returned what was in it, and a process that is about to end by
    then may be aborted for it, or hang (https://github.com/apache/arrow/issues/33975, 34314,
    50482). buffer_size: bytes read at once of a column; 0 is all of it. Raises pyarrow's errors.
    """
    return pq.ParquetFile(
        opened, buffer_size=buffer_size, page_checksum_verification=True, pre_buffer=False
    )
