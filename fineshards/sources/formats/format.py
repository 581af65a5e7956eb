"""What a format of source files is: a class with its endings, what it can do, and its reader."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from fineshards.errors import UsageError
from fineshards.plugin_registry import Plugins
from fineshards.shards.job.records import BadRow, Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import check_columns
from fineshards.sources.compression import ENDINGS
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, LABEL_COLUMNS, RowBatch

# Bytes per request when a remote file is read sequentially. A request takes as long as receiving
# a few megabytes.
READ_AHEAD = 16 << 20


class Format:
    """A format: how a file is found by its name, cut into blocks, and read.

    A subclass sets `endings`, and defines `schema` and `read`; and `blocks`, where a file can be
    read from several places. Records have the name of its entry point.

    endings: of file names, each with its dot, in lower case. compressions: by which a whole file
    may be compressed. typed: whether columns have types; without, the values of `Columns.others`
    are JSON texts. has_columns: whether it has columns of its author's, such as messages.
    holds_tokens: whether it holds nothing but tokens. labels: columns whose values are counted.
    read_ahead, discovery_read_ahead: least bytes per request of a remote file.
    """

    endings: tuple[str, ...]
    compressions: tuple[str, ...] = ("none", *dict.fromkeys(ENDINGS.values()))
    typed = True
    has_columns = True
    holds_tokens = False
    labels: tuple[str, ...] = LABEL_COLUMNS
    read_ahead = READ_AHEAD
    discovery_read_ahead = 1 << 20

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """The types of all columns of a file; raises InputError if it cannot be used."""
        raise NotImplementedError

    def companions(self, path: str) -> tuple[str, ...]:
        """The paths of files that may lie beside one. Its index is first, and pinned with it."""
        return ()

    def objects(self, file: SourceFile, opened: BinaryIO) -> Iterator[dict[str, Any]]:
        """Yields those of the first rows of a file without types that are objects."""
        return iter(())

    def blocks(
        self, file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int
    ) -> list[Block]:
        """The blocks of a file, from metadata alone: of about `block_bytes`, or one of all of it.

        Raises InputError for a file that is damaged or lacks a column.
        """
        check_columns(file, self.schema(file, opened), columns)
        return whole(file)

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """Yields the rows of a block in order, in bounded memory; raises InputError for damage."""
        raise NotImplementedError


# By the name that records have.
FORMATS: Plugins[Format] = Plugins("formats", makes=True)


def whole(file: SourceFile) -> list[Block]:
    """A file as one block, for a format whose rows can only be found from the start."""
    return [Block(file.index, 0, 1, 0, 0, 0, file.size)]


def file_name(path: str) -> str:
    """The name of a file, without the query that a URL of a web server may end with."""
    return os.path.basename(without_query(path))


def beside(path: str, ending: str, replaced: str = "") -> str:
    """A path whose name has one more ending, before the query of a URL of a web server.

    replaced: the ending that makes way for it.
    """
    end = len(without_query(path))
    return path[: end - len(replaced)] + ending + path[end:]


def without_query(path: str) -> str:
    """A path, of a URL of a web server without its query."""
    is_web = path.startswith(("http://", "https://"))
    return re.split("[?#]", path, maxsplit=1)[0] if is_web else path


def readable() -> str:
    """The endings of names that can be read, as words."""
    endings: dict[str, list[str]] = {}
    for kind in FORMATS.values():
        outside = [ending for ending, name in ENDINGS.items() if name in kind.compressions]
        also = f", plain or with {', '.join(outside)}" if outside else ""
        endings.setdefault(also, []).extend(kind.endings)
    return "; or ".join(", ".join(names) + also for also, names in endings.items())


def companions_of(path: str) -> tuple[str, ...]:
    """The companions of a file, by its format; none if that is unknown."""
    known = known_format(path)
    return FORMATS[known[0]].companions(path) if known else ()


def format_of(path: str) -> tuple[str, str]:
    """Returns (format, compression) for a file name; raises UsageError for an unknown extension."""
    known = known_format(path)
    if known is None:
        name = file_name(path)
        raise UsageError(
            f"{path}: cannot read a file named {name!r}; expected {readable()}. "
            "Convert the file, or narrow the pattern to exclude it."
        )
    return known


def known_format(path: str) -> tuple[str, str] | None:
    """As `format_of`; None for an unknown extension."""
    stem, compression = file_name(path).lower(), "none"
    for ending, its_name in ENDINGS.items():
        if stem.endswith(ending):
            stem, compression = stem.removesuffix(ending), its_name
            break
    ending = os.path.splitext(stem)[1]
    for name, kind in FORMATS.items():
        if ending in kind.endings and compression in kind.compressions:
            return name, compression
    return None


def reason_of(error: Exception) -> str:
    """The first line of a library's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def gathered(
    rows: Iterable[BadRow | tuple[int, Sequence[Any], int]], schema: pa.Schema
) -> Iterator[RowBatch]:
    """Record batches of rows that a reader finds one by one.

    rows: each with its number, a value for each column, and about how many bytes it has. A string
    may have bytes that are not UTF-8 as surrogates (`errors="surrogateescape"`).
    """
    numbers, values, bad, size = list[int](), list[Sequence[Any]](), list[BadRow](), 0
    for row in chain(rows, [None]):
        if isinstance(row, BadRow):
            bad.append(row)
        elif row is not None:
            numbers.append(row[0])
            values.append(row[1])
            size += row[2]
        is_full = size >= BATCH_BYTES or len(numbers) + len(bad) >= BATCH_ROWS
        if is_full or (row is None and (numbers or bad)):
            columns = [
                _array([value[index] for value in values], kind)
                for index, kind in enumerate(schema.types)
            ]
            yield RowBatch(
                np.array(numbers, np.int64), pa.RecordBatch.from_arrays(columns, schema=schema), bad
            )
            numbers, values, bad, size = [], [], [], 0


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        # Without a check: a value that is not UTF-8 makes a bad row, or is left out.
        utf8 = [value and value.encode("utf-8", "surrogateescape") for value in values]
        raw = pa.array(utf8, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
        return pa.Array.from_buffers(kind, len(raw), raw.buffers(), raw.null_count)
