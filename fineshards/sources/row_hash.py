"""A hash of the rows of a block, by which a source file that was copied is told from another one.

It is XXH3-128 of what decides the result: numbers of rows, texts, ids, labels, and the columns that
the split and the steps read. How Arrow holds the values changes nothing: neither record batches,
nor offsets, nor dictionaries. Columns of values are hashed as their buffers; no Python string is
made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from fineshards.shards.job.records import Block, ReadRows, SourceFile
from fineshards.sources.rows import Rows

# Rows after which the hash so far is kept, to say where a file differs.
_PART_ROWS = 1024


class RowHash:
    """The hash of the rows of a block that pass through `through`, in order."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._rows = xxhash.xxh3_128()
        self._bad = xxhash.xxh3_128()
        self._waiting: list[int] = []  # bad rows after the last one that is hashed
        self._parts: list[str] = []
        self._last_rows: list[int] = []
        self._last_row = -1
        self._count = 0

    def through(self, read: Iterable[Rows]) -> Iterator[Rows]:
        """Yields rows as they are."""
        for rows in read:
            self._add(rows)
            yield rows

    def read(self, file: SourceFile) -> ReadRows:
        """The record of the rows, which are of a file."""
        return ReadRows(self._digest(self._waiting), file.version, tuple(self._parts))

    def differs_from(self, read: ReadRows, block: Block) -> tuple[int, int]:
        """The first and last number of the rows among which the first difference is."""
        pairs = zip(self._parts, read.parts, strict=False)
        same = next((n for n, (mine, its) in enumerate(pairs) if mine != its), None)
        if same is None:
            same = min(len(self._parts), len(read.parts))
        borders = [block.first_row - 1, *self._last_rows, max(self._last_row, block.first_row)]
        return borders[same] + 1, max(borders[same + 1], borders[same] + 1)

    def _digest(self, more_bad: Sequence[int] = ()) -> str:
        bad = self._bad.copy()
        bad.update(np.array(more_bad, "<i8").data)
        whole = xxhash.xxh3_128(self._rows.digest() + bad.digest())
        for name in sorted(self._columns):
            content = name.encode()
            whole.update(len(content).to_bytes(8, "little") + content)
            whole.update(self._columns[name].digest())
        return whole.hexdigest()

    def _add(self, rows: Rows) -> None:
        numbers = np.ascontiguousarray(rows.numbers, "<i8")
        # Without the reason, whose words may change from version to version.
        self._waiting += sorted(bad.row for bad in rows.bad)
        self._last_row = max([self._last_row, *numbers[-1:].tolist(), *self._waiting[-1:]])
        columns = {"text": rows.texts, "id": rows.ids, "split": rows.split}
        for kind, found in (("", rows.labels), ("other ", rows.others)):
            columns |= {f"{kind}column {name}": values for name, values in found.items()}
        # Cut at every so many rows of the block, whatever the record batches are.
        at = 0
        while at < len(numbers):
            stop = min(at + _PART_ROWS - self._count % _PART_ROWS, len(numbers))
            part = numbers[at:stop]
            self._rows.update(part.data)
            for name, values in columns.items():
                values = values.slice(at, stop - at)
                if values.null_count < len(values):
                    self._columns.setdefault(name, _Column()).add(part, values)
            self._count += stop - at
            at = stop
            if self._count % _PART_ROWS == 0:
                self._last_rows.append(int(part[-1]))
                before = bisect_left(self._waiting, self._last_rows[-1])
                self._bad.update(np.array(self._waiting[:before], "<i8").data)
                del self._waiting[:before]
                self._parts.append(self._digest()[:16])


class _Column:
    """The hash of the values of a column: those that are not null, with their rows."""

    def __init__(self) -> None:
        self._borders, self._content = xxhash.xxh3_128(), xxhash.xxh3_128()

    def add(self, numbers: npt.NDArray[np.int64], values: pa.Array) -> None:
        if values.null_count:
            numbers = numbers[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        lengths, content = _plain(values)
        self._borders.update(np.stack([numbers, lengths], axis=1, dtype="<i8").data)
        self._content.update(content)

    def digest(self) -> bytes:
        return self._borders.digest() + self._content.digest()


def _plain(values: pa.Array) -> tuple[npt.NDArray[np.int64], memoryview]:
    """The number of bytes of each value, and the bytes of all of them; there are no nulls."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_primitive(kind):
        fixed = np.ascontiguousarray(values.to_numpy(zero_copy_only=False))
        if not fixed.dtype.hasobject:
            return np.full(len(values), fixed.itemsize), fixed.view(np.uint8).data
    if not _is_bytes(kind):
        # Lists, structs, decimals and times of a day, which few steps read.
        values, kind = pa.array([repr(each).encode() for each in values.to_pylist()]), pa.binary()
    if kind not in (pa.large_binary(), pa.large_string()):
        values = values.cast(pa.large_binary())
    _, offsets, content = values.buffers()
    if content is None:  # as Arrow may have where all are empty
        return np.zeros(len(values), np.int64), memoryview(b"")
    borders = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    first, last = int(borders[0]), int(borders[-1])
    return np.diff(borders), memoryview(content.slice(first, last - first))


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether a type is one of strings or bytes of any length."""
    return any(
        is_kind(kind)
        for is_kind in (
            *(pa.types.is_string, pa.types.is_large_string),
            *(pa.types.is_binary, pa.types.is_large_binary),
        )
    )
