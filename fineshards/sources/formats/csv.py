"""CSV and TSV with a header, plain or compressed: one row per record, one block per file.

pyarrow decides what a record is, as RFC 4180 does: values may be quoted, also in TSV, and quoted
values may hold line ends. All columns are strings. An empty value is null unless it is quoted.
"""

from __future__ import annotations

import codecs
import io
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from fineshards.errors import InputError
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.compression import check_beginning, explained, open_text
from fineshards.sources.formats.conversations import text_columns
from fineshards.sources.formats.record_batches import check_columns, columns_to_read, rows_of
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, Rows

_DELIMITERS = {"csv": ",", "tsv": "\t"}
# Bytes that are parsed at a time. A record must fit, so a longer one is read again with the next.
# Memory is four times as much.
_READ_BYTES = (1 << 20, 16 << 20, 256 << 20)
_PIECE = 1 << 18
# Seconds to wait for a thread that lets go of a file.
_PATIENCE = 10.0
_STRADDLES = "straddl"
# A record of this value alone is added to the end. If it is not the last record, a quote is open.
_END = "end of the file as fineshards marks it"


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the single block of a file; raises InputError if its header lacks a column.

    Records can only be found by reading from the start, so the file is not split and `block_bytes`
    has no effect.
    """
    check_columns(file, schema(file, opened), columns)
    return [Block(file.index, 0, 1, 0, 0, 0, file.size)]


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the rows of a file in order, numbered from 0 after the header. Blank lines are none.

    A record with another number of values than the header is a bad row. Raises InputError for a
    file that is truncated, or not compressed as its name says.
    """
    header = schema(file, opened)
    check_columns(file, header, columns)
    progress, sizes, any_bytes = _Position(), list(_READ_BYTES), False
    while sizes:
        opened.seek(0)
        try:
            yield from _read(file, opened, columns, header, progress, sizes[0], any_bytes)
            return
        except _TooLongError:
            del sizes[0]
        except _NotUtf8Error:
            any_bytes = True
    raise InputError(
        f"{file.path}, after {progress}: a record has more than "
        f"{_READ_BYTES[-1] >> 20:,} MiB. A quote may be missing; fix the file, or exclude it."
    )


class _TooLongError(Exception):
    """A record is longer than what is parsed at a time."""


class _NotUtf8Error(Exception):
    """The text is not UTF-8, so the file is read again as any bytes."""


@dataclass(slots=True)
class _Position:
    """How far a file has been read. next_row: the rows before it have been returned."""

    next_row: int = 0

    def __str__(self) -> str:
        return f"row {self.next_row - 1}" if self.next_row else "the header"


def schema(file: SourceFile, opened: BinaryIO) -> pa.Schema:
    """The columns of a file, all of strings; raises InputError for one without a header."""
    with explained(file, lambda: "the beginning"):
        check_beginning(file, open_text(file, opened).read(4))
    sizes, any_bytes = list(_READ_BYTES), False
    while sizes:
        opened.seek(0)
        try:
            with _open(file, opened, None, sizes[0], b"\n", {}, any_bytes) as (reader, _):
                names = reader.schema.names
                del reader
            if any_bytes:
                names = [name.encode("latin-1").decode() for name in names]
            return pa.schema([(name, pa.string()) for name in names])
        except _TooLongError:
            del sizes[0]
        except _NotUtf8Error:
            any_bytes = True
        except UnicodeDecodeError as error:
            raise InputError(
                f"{file.path}: its header is not valid UTF-8: {error.object[:40]!r}. "
                "Convert the file to UTF-8."
            ) from error
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{file.path}: has no header that can be read ({error}). Its first line must name "
                "the columns; add one, or exclude the file."
            ) from error
    raise InputError(
        f"{file.path}: its header has no end in the first "
        f"{_READ_BYTES[-1] >> 20:,} MiB. The file is damaged; exclude it."
    )


def _read(
    file: SourceFile,
    opened: BinaryIO,
    columns: Columns,
    header: pa.Schema,
    progress: _Position,
    read_bytes: int,
    any_bytes: bool,
) -> Iterator[Rows]:
    """Yields the rows that have not been returned yet."""
    end = f"\n{_DELIMITERS[file.format].join([_END] * len(header))}\n".encode()
    bad: dict[int, BadRow] = {}
    first, before = 0, None
    names = columns_to_read(header, columns)
    with _open(file, opened, names, read_bytes, end, bad, any_bytes) as readers:
        for each in _batches(file, readers, progress):
            batch = _as_bytes(each, names) if any_bytes else each
            if before is not None:
                yield from _rows(*before, bad, columns, progress)
            numbers = _numbers(first, batch.num_rows, bad)
            first, before = int(numbers[-1]) + 1, (numbers, batch)
    # The batch before the end is kept back, to look for the mark in it.
    if before is None or not _is_end(before[1].column(text_columns(columns, names)[0])[-1]):
        raise InputError(
            f"{file.path}, after {progress}: ends inside a quoted value. The file is truncated, or "
            "a quote is missing; download it again, or fix it."
        )
    yield from _rows(*before, bad, columns, progress, without_last=True)


def _is_end(text: pa.Scalar) -> bool:
    return bool(text.is_valid and text.as_buffer().to_pybytes() == _END.encode())


def _wait_until_gone(reference: weakref.ref[Any]) -> None:
    """Waits for the threads of pyarrow to let go of a Python object.

    A process that ends while they do so may abort (`fineshards/shards/parquet_file.py`).
    """
    until = time.monotonic() + _PATIENCE
    while reference() is not None and time.monotonic() < until:
        time.sleep(0.0005)


@contextmanager
def _open(
    file: SourceFile,
    opened: BinaryIO,
    names: list[str] | None,
    read_bytes: int,
    end: bytes,
    bad: dict[int, BadRow],
    any_bytes: bool,
) -> Iterator[list[Any]]:
    """A reader of pyarrow, which adds the records that it leaves out to `bad`, by row.

    It is an item of a list, because it must be gone when the block ends; the other is its stream.

    names: the columns to read, as strings; None for all, of any type. end: what follows the file.
    any_bytes: see _Followed.
    """
    if any_bytes and names is not None:
        names = [name.encode().decode("latin-1") for name in names]

    def leave_out(found: Any) -> str:
        row = found.number - 2  # counted from 1, with the header
        values = f"has {found.actual_columns} values, expected {found.expected_columns}"
        bad[row] = BadRow(row, "", values)
        return "skip"

    with explained(file, lambda: "the beginning"):
        stream = _Followed(open_text(file, opened), end, any_bytes)
        buffered = io.BufferedReader(stream, _PIECE)
        read_by_arrow = weakref.ref(buffered)
        try:
            reader = pacsv.open_csv(
                buffered,
                pacsv.ReadOptions(use_threads=False, block_size=read_bytes),
                pacsv.ParseOptions(
                    delimiter=_DELIMITERS[file.format],
                    newlines_in_values=True,
                    invalid_row_handler=leave_out,
                ),
                pacsv.ConvertOptions(
                    check_utf8=False,  # so that it is one row that is bad
                    include_columns=names,
                    column_types=dict.fromkeys(names or (), pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            stream.stop()
            del buffered
            _wait_until_gone(read_by_arrow)
            if stream.is_not_utf8:
                raise _NotUtf8Error from error
            if _STRADDLES in str(error):
                raise _TooLongError from error
            raise
    readers = [reader, stream]
    del reader, buffered
    try:
        if stream.is_not_utf8:
            raise _NotUtf8Error
        yield readers
    finally:
        stream.stop()
        readers.clear()
        _wait_until_gone(read_by_arrow)


def _batches(file: SourceFile, readers: list[Any], progress: _Position) -> Iterator[pa.RecordBatch]:
    """The batches that have rows."""
    while True:
        with explained(file, lambda: str(progress)):
            try:
                batch = readers[0].read_next_batch()
            except StopIteration:
                if readers[1].is_not_utf8:
                    raise _NotUtf8Error from None
                return
            except pa.ArrowInvalid as error:
                if readers[1].is_not_utf8:
                    raise _NotUtf8Error from error
                if _STRADDLES in str(error):
                    raise _TooLongError from error
                raise InputError(
                    f"{file.path}, after {progress}: cannot be parsed: {error}."
                ) from error
        if batch.num_rows:
            yield batch


def _as_bytes(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """A batch with the bytes of the file, which were characters of Latin 1."""
    columns = []
    for values in batch.columns:
        found = [None if each is None else each.encode("latin-1") for each in values.to_pylist()]
        # Without a check: what is not UTF-8 is a bad row.
        buffers = pa.array(found, pa.binary()).buffers()
        columns.append(pa.Array.from_buffers(pa.string(), len(found), buffers))
    return pa.record_batch(columns, names=names)


def _numbers(first: int, count: int, bad: dict[int, BadRow]) -> npt.NDArray[np.int64]:
    """The numbers of so many rows, from `first` or the first one after it that is not bad."""
    later = [row for row in bad if row >= first]
    numbers = np.arange(first, first + count + len(later), dtype=np.int64)
    return numbers[~np.isin(numbers, later)][:count]


def _rows(
    numbers: npt.NDArray[np.int64],
    batch: pa.RecordBatch,
    bad: dict[int, BadRow],
    columns: Columns,
    progress: _Position,
    without_last: bool = False,
) -> Iterator[Rows]:
    """Yields those rows of a batch, in parts, that have not been returned yet."""
    size = max(1, min(BATCH_ROWS, BATCH_BYTES * len(numbers) // max(batch.nbytes, 1)))
    kept = len(numbers) - without_last
    begin = int(np.searchsorted(numbers, progress.next_row))
    for start in range(begin, max(kept, begin + 1), size):
        stop = min(start + size, kept)
        # Bad rows come with the rows after them.
        next_row = int(numbers[stop - 1]) + 1 if stop < kept else int(numbers[-1]) + 1
        rows = rows_of(batch.slice(start, stop - start), numbers[start:stop], columns)
        left_out = [bad[row] for row in sorted(bad) if progress.next_row <= row < next_row]
        yield replace(rows, bad=sorted(rows.bad + left_out, key=lambda each: each.row))
        progress.next_row = next_row


class _Followed(io.RawIOBase):
    """A stream, and then some bytes more.

    A thread of pyarrow's reads ahead, and may still do so when its reader is closed. Once this is
    stopped it reads no more, so that the file can be read again from the start.

    It ends before what is not UTF-8, unless it takes any bytes: then each is a character of
    Latin 1. pyarrow prints a traceback where it cannot decode a record that has too many values.
    """

    def __init__(self, stream: BinaryIO, end: bytes, any_bytes: bool) -> None:
        super().__init__()
        self._stream, self._end = stream, end
        self._lock, self._stopped = Lock(), False
        self._any_bytes, self._begun = any_bytes, False
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.is_not_utf8 = False

    def stop(self) -> None:
        """Ends the stream here, once a read that is under way is done."""
        with self._lock:
            self._stopped = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._lock:
            if self._stopped:
                return 0
            try:
                content = self._characters(len(buffer))
            except UnicodeDecodeError:
                self.is_not_utf8 = self._stopped = True
                return 0
            if not content:
                content, self._end = self._end[: len(buffer)], self._end[len(buffer) :]
            buffer[: len(content)] = content
            return len(content)

    def _characters(self, size: int) -> bytes:
        """The next characters in UTF-8, and none at the end; raises UnicodeDecodeError for others.

        size: the most bytes.
        """
        if self._any_bytes:
            # A character of Latin 1 has up to two bytes.
            content = self._stream.read(size // 2)
            begin = content if self._begun else content.removeprefix(codecs.BOM_UTF8)
            self._begun = True
            return begin.decode("latin-1").encode()
        while True:
            # The beginning of a character waits for its end, which has three bytes at most.
            before, _ = self._decoder.getstate()
            content = self._stream.read(size - 3)
            self._decoder.decode(content, final=not content)
            after, _ = self._decoder.getstate()
            whole = before + content
            whole = whole[: len(whole) - len(after)]
            if whole or not content:
                return whole
