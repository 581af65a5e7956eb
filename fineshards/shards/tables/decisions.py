"""Decisions: what the steps of a recipe did to which rows of a source file.

A decision drops a document or, where `span` is not null, cuts a span out of its text. Rows are
sorted, so the bytes depend on the job alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.shards.counts import Counts, Dropped, DroppedDump
from fineshards.shards.layout import file_table
from fineshards.shards.parquet_file import completed, parquet_bytes, read_table
from fineshards.storage.base import Storage

# row: number in the source file. step: number in the recipe, from 0. reason: why. span: number of
# the span in the text as the step found it; null for a whole document. witness_file, witness_row:
# the earlier document with the same key; a negative file is -1 minus the number of an index of
# other documents (`seen_in`), and the row is that of its entry. similarity: of the two, where their
# texts were compared.
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("step", pa.int16(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("span", pa.uint32()),
        pa.field("witness_file", pa.int32()),
        pa.field("witness_row", pa.int64()),
        pa.field("similarity", pa.float32()),
    ]
)
NO_STEP = 2**15 - 1
# Of decisions that are grouped.
_SUMS = ("step", "reason", "text_bytes_count", "text_bytes_sum")
_ORDER = [("row", "ascending"), ("step", "ascending"), ("span", "ascending")]


def drops(rows: npt.NDArray[np.int64], step: int, reasons: Sequence[str]) -> pa.Table:
    """The decisions of a step that drops documents by themselves, without witnesses."""
    columns = [rows, np.full(len(rows), step, np.int16), pa.array(reasons, pa.string())]
    return completed(pa.table(columns, SCHEMA.names[:3]), SCHEMA)


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """The decisions of several tables in one, in order."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables])
    return table.sort_by(_ORDER).combine_chunks()


def to_bytes(table: pa.Table) -> bytes:
    """Decisions as a Parquet file, whose pages have checksums.

    Without the column of similarities where there are none, as in versions before.
    """
    if table["similarity"].null_count == len(table):
        table = table.drop_columns("similarity")
    return parquet_bytes(table)


def read_decisions(storage: Storage, file: int) -> Decisions:
    """The decisions about a source file of a finished dataset."""
    name = file_table("decisions", file)
    content = storage.read_if_there(name)
    if content is None:
        return NO_DECISIONS
    return Decisions(read_table(content, storage.path(name), SCHEMA))


@dataclass(frozen=True)
class Decisions:
    """Decisions about rows of one source file, for looking up rows."""

    table: pa.Table

    @cached_property
    def _whole(self) -> pa.Table:
        return self.table.filter(pc.is_null(self.table["span"])).sort_by(_ORDER)

    @cached_property
    def dropped_rows(self) -> npt.NDArray[np.int64]:
        """The numbers of the rows that are dropped, ascending."""
        rows: npt.NDArray[np.int64] = self._whole["row"].to_numpy()
        return rows

    @cached_property
    def _cuts(self) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
        cut = self.table.filter(pc.is_valid(self.table["span"])).sort_by(_ORDER)
        rows, steps, spans = (cut[name].to_numpy() for name in ("row", "step", "span"))
        return {int(step): (rows[steps == step], spans[steps == step]) for step in np.unique(steps)}

    def dropping(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """The step that drops each of the given rows, shape (n,); NO_STEP where none does."""
        if not len(self.dropped_rows):
            return np.full(len(rows), NO_STEP, np.int16)
        places, steps = self._places(rows), self._whole["step"].to_numpy()
        return np.where(self.dropped_rows[places] == rows, steps[places], NO_STEP)

    def are_dropped(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of the given rows, shape (n,), are dropped."""
        dropped: npt.NDArray[np.bool_] = self.dropping(rows) < NO_STEP
        return dropped

    def _places(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where rows are, if they are dropped."""
        places = np.searchsorted(self.dropped_rows, rows)
        return np.minimum(places, len(self.dropped_rows) - 1)

    def spans(self, step: int, row: int) -> list[int]:
        """The numbers of the spans that a step cuts out of a row's text, ascending."""
        if step not in self._cuts:
            return []
        rows, spans = self._cuts[step]
        first, last = np.searchsorted(rows, [row, row + 1])
        numbers: list[int] = spans[first:last].tolist()
        return numbers

    def count_dropped(
        self, rows: npt.NDArray[np.int64], texts: pa.Array, dumps: pa.Array | None
    ) -> Counts:
        """Counts those of the given rows, ascending, that are dropped, by step and reason.

        texts: of the rows. dumps: their values of that label column. All have length n.
        """
        gone = self.are_dropped(rows)
        if not gone.any():
            return Counts()
        decided = self._whole.select(["step", "reason"]).take(pa.array(self._places(rows[gone])))
        lengths = pc.binary_length(texts.filter(pa.array(gone))).cast(pa.int64())
        decided = decided.append_column("text_bytes", lengths)
        sums = decided.group_by(["step", "reason"], use_threads=False).aggregate(
            [("text_bytes", "count"), ("text_bytes", "sum")]
        )
        dropped = tuple(Dropped(*(row[name] for name in _SUMS)) for row in sums.to_pylist())
        if dumps is None:
            return Counts(dropped=dropped)
        decided = decided.append_column("dump", dumps.filter(pa.array(gone))).drop_null()
        sums = decided.group_by(["step", "dump"], use_threads=False).aggregate([("dump", "count")])
        of_dumps = (DroppedDump(r["step"], r["dump"], r["dump_count"]) for r in sums.to_pylist())
        return Counts(dropped=dropped, dropped_dumps=tuple(of_dumps))

    @cached_property
    def _sorted_rows(self) -> npt.NDArray[np.int64]:
        rows: npt.NDArray[np.int64] = self.table["row"].to_numpy()
        return rows

    def of_row(self, row: int) -> list[dict[str, Any]]:
        """All decisions about a row, in the order of the steps. The table must be sorted."""
        first, last = np.searchsorted(self._sorted_rows, [row, row + 1]).tolist()
        decisions: list[dict[str, Any]] = self.table.slice(first, last - first).to_pylist()
        return decisions


NO_DECISIONS = Decisions(pa.Table.from_batches([], SCHEMA))  # empty_table imports pandas
