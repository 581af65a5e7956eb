"""Arrow IPC: the file format, which Feather 2 is, in blocks of record batches; or a stream.

A stream, which the `datasets` library writes to its cache, has no footer and is one block. Only the
needed columns are decoded. A record batch is read as a whole, so a worker's memory follows the
largest one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import check_columns, wanted_columns
from fineshards.sources.formats.format import Format, reason_of, whole
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, RowBatch

# https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
_FILE = b"ARROW1"
# Before the length of a message, which is 0 at the end of a stream. Not before version 0.15.
_CONTINUATION = b"\xff\xff\xff\xff"


class Arrow(Format):
    """Record batches, which are decoded one by one."""

    endings = (".arrow", ".feather")
    compressions = ("none",)
    discovery_read_ahead = 1 << 16

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format."""
        with _damage_explained(file):
            return _open(opened).schema

    def blocks(
        self, file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int
    ) -> list[Block]:
        """See Format. Blocks have equal numbers of record batches; a stream is one block."""
        schema = self.schema(file, opened)
        check_columns(file, schema, columns)
        if not _is_file(opened):
            _check_end_of_stream(file, opened)
            return whole(file)
        with _damage_explained(file):
            rows = _batch_rows(opened, schema)
        blocks = max(1, min(len(rows), file.size // block_bytes))
        groups = [len(rows) * number // blocks for number in range(blocks + 1)]
        return [
            Block(file.index, index, blocks, first, stop, sum(rows[:first]), file.size // blocks)
            for index, (first, stop) in enumerate(pairwise(groups))
        ]

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format."""
        is_file = _is_file(opened)
        with _damage_explained(file):
            reader = _open(opened, wanted_columns(self.schema(file, opened), columns))
        row = block.first_row
        for number in range(block.first_group, block.stop_group) if is_file else count():
            with _damage_explained(file, f", record batch {number}"):
                try:
                    batch = reader.get_batch(number) if is_file else reader.read_next_batch()
                except StopIteration:
                    break
            _check_content(file, batch, row)
            size = max(1, min(BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
            for start in range(0, batch.num_rows, size):
                part = batch.slice(start, size)
                yield RowBatch(np.arange(row, row + part.num_rows, dtype=np.int64), part, [])
                row += part.num_rows
        if not is_file and opened.tell() != file.size:
            raise InputError(
                f"{file.path}: its stream ends at byte {opened.tell():,} of {file.size:,}. Streams "
                "that were joined cannot be read; write them to a file each."
            )


def _open(opened: BinaryIO, names: list[str] | None = None) -> Any:
    """A reader of pyarrow, of the columns with these names; None for all."""
    make = ipc.open_file if _is_file(opened) else ipc.open_stream
    opened.seek(0)
    known = make(opened).schema.names  # raises if one is not UTF-8
    columns = {name if name in known else name.partition(".")[0] for name in names or ()}
    options = ipc.IpcReadOptions(
        included_fields=None if names is None else sorted(map(known.index, columns)),
        use_threads=False,
    )
    opened.seek(0)
    return make(opened, options=options)


def _batch_rows(opened: BinaryIO, schema: pa.Schema) -> list[int]:
    """The number of rows of each record batch.

    pyarrow says it only of a batch that it reads, so this reads one column, a small one if it can.
    """
    names = [name for name in schema.names if schema.names.count(name) == 1]
    small = max(names, key=lambda name: pa.types.is_primitive(schema.field(name).type))
    reader = _open(opened, [small])
    return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]


def _is_file(opened: BinaryIO) -> bool:
    """Whether this is the file format, and not a stream."""
    opened.seek(0)
    return opened.read(len(_FILE)) == _FILE


def _check_end_of_stream(file: SourceFile, opened: BinaryIO) -> None:
    """Raises InputError for a stream without its mark of the end: its writer did not finish."""
    opened.seek(0)
    mark = _CONTINUATION if opened.read(4) == _CONTINUATION else b""
    opened.seek(max(file.size - 8, 0))
    if not opened.read(8).endswith(mark + bytes(4)):
        raise InputError(
            f"{file.path}: does not end as a finished Arrow stream. It is truncated, or its writer "
            "was stopped; write or download it again."
        )


def _check_content(file: SourceFile, batch: pa.RecordBatch, row: int) -> None:
    """Raises InputError for offsets beyond the data, which pyarrow takes on trust when it reads."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):  # which makes a bad row
                continue
            raise InputError(
                f"{file.path}, column {name!r} from row {row}: cannot be decoded: {error}. "
                "The file is damaged; download it again."
            ) from error


@contextmanager
def _damage_explained(file: SourceFile, place: str = "") -> Iterator[None]:
    try:
        yield
    # A damaged length may be more than there is memory for.
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(
            f"{file.path}{place} ({file.size} bytes) is not readable Arrow IPC: "
            f"{reason_of(error)}. It may be truncated or in another format; download it again, "
            "or exclude it."
        ) from error
