"""Parquet footers: parsed once per file, and looked into without ending the process.

pyarrow cannot report an error that C++ raises while it describes a column chunk (an encrypted
column, a damaged footer): the process aborts. Reading a column chunk does report the same error,
and it describes the chunk before it asks for the first byte. So `column_chunks` first begins
to read each chunk, from a file that refuses to be read.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.shards.parquet_file import open_parquet

# Footers kept per process, by their size in the file. Parsed they are some times as large.
_KEPT_BYTES = 32 << 20


class EncryptedError(InputError):
    """A column is encrypted."""


class _FooterCache:
    """The footers used last. A footer of 20,000 row groups takes a third of a second to parse."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[SourceFile, pq.FileMetaData] = OrderedDict()
        self._bytes = 0

    def get(self, file: SourceFile) -> pq.FileMetaData | None:
        with self._lock:
            if file in self._kept:
                self._kept.move_to_end(file)
            return self._kept.get(file)

    def keep(self, file: SourceFile, footer: pq.FileMetaData) -> None:
        with self._lock:
            if file in self._kept:
                return
            self._kept[file] = footer
            self._bytes += footer.serialized_size
            while len(self._kept) > 1 and self._bytes > _KEPT_BYTES:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.serialized_size


_footers = _FooterCache()


def open_source(file: SourceFile, opened: BinaryIO, buffer_size: int) -> pq.ParquetFile:
    """Opens a source file, with the footer of an earlier call if there was one.

    The footer belongs to one version of the file: `file` holds its size and identity. Raises
    InputError for a file that is not Parquet, or has a column name that is not UTF-8.
    """
    footer = _footers.get(file)
    try:
        parquet = open_parquet(opened, buffer_size, footer)
        _paths(parquet.metadata)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file.path}: the name of a column is not valid UTF-8: {error.object!r}. Rename the "
            "column, or download the file again if it is damaged."
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file.path} ({file.size} bytes) is not a readable parquet file: {reason(error)}. "
            "It may be truncated or in another format; download it again, or exclude it."
        ) from error
    if footer is None:
        _footers.keep(file, parquet.metadata)
    return parquet


def column_chunks(
    file: SourceFile, footer: pq.FileMetaData, column: str, groups: range | None = None
) -> Iterator[pq.ColumnChunkMetaData | None]:
    """Yields what the footer says of a column in each row group; None for one without rows.

    column: one at the top level; of a nested one, its first part. groups: None for all. Raises
    InputError if the footer is damaged, or the column encrypted.
    """
    paths = _paths(footer)
    inner = [path for path in paths if path.startswith(f"{column}.")]
    position = paths.index(column if column in paths else inner[0])
    unreadable = open_parquet(cast(BinaryIO, _Unreadable(file.size)), footer=footer)
    for group in range(footer.num_row_groups) if groups is None else groups:
        try:
            for _ in unreadable.iter_batches(1, [group], [column], use_threads=False):
                break
            yield None
        except _ReadError:
            yield footer.row_group(group).column(position)
        except (pa.ArrowException, OSError) as error:
            raise cannot_decode(file, group, group + 1, error) from error


def leaves(footer: pq.FileMetaData, column: str) -> list[str]:
    """The columns of the file that one at the top level consists of: several if it is nested."""
    return [path for path in _paths(footer) if path == column or path.startswith(f"{column}.")]


def is_encrypted(file: SourceFile, footer: pq.FileMetaData, column: str) -> bool:
    """Whether a column is encrypted, by its first row group."""
    try:
        next(column_chunks(file, footer, column), None)
    except EncryptedError:
        return True
    return False


def _paths(footer: pq.FileMetaData) -> list[str]:
    """The names of all columns, those in structs with dots; raises UnicodeDecodeError."""
    return [footer.schema.column(index).path for index in range(footer.num_columns)]


def cannot_decode(file: SourceFile, first: int, stop: int, error: Exception) -> InputError:
    """The error for row groups `[first, stop)` that cannot be read."""
    if "decrypt" in str(error).lower():
        return EncryptedError(
            f"{file.path}, {place(first, stop)}: a column that is needed is encrypted. Decrypt the "
            "file, or exclude it."
        )
    return InputError(
        f"{file.path}, {place(first, stop)}: cannot be decoded: {reason(error)}. "
        "The file is damaged; download it again."
    )


def place(first: int, stop: int) -> str:
    """Row groups `[first, stop)` as words."""
    return f"row group {first}" if stop == first + 1 else f"row groups {first} to {stop - 1}"


def reason(error: Exception) -> str:
    """The first line of a library's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


class _ReadError(Exception):
    """A byte of an unreadable file was asked for."""


class _Unreadable(io.RawIOBase):
    """A file of which nothing can be read but its size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> Any:
        raise _ReadError
