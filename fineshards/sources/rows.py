"""Rows as the readers of all formats return them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.shards.job.records import BadRow, SourceFile
from fineshards.shards.split_hash import hash_texts
from fineshards.shards.split_rule import SplitRule
from fineshards.shards.tables.documents import source_schema

# Columns whose values are counted in the manifest, if a file has them: FineWeb's.
LABEL_COLUMNS = ("dump", "language")

# Text decoded at a time: large enough to amortize the cost per record batch, small enough for any
# worker. Parquet's row count follows from the average row, so BATCH_ROWS bounds a batch whose rows
# are longer than average.
BATCH_BYTES = 8 << 20
BATCH_ROWS = 2048


class RowBatch(NamedTuple):
    """Rows of a file as its format yields them, in order.

    numbers: their numbers in the file, ascending, int64, shape (n,). columns: their values, of
    `wanted_columns` or more. bad: rows among them that are left out, because they cannot be read.
    """

    numbers: npt.NDArray[np.int64]
    columns: pa.RecordBatch
    bad: list[BadRow]


@dataclass(frozen=True, slots=True)
class Rows:
    """A record batch of consecutive rows.

    numbers: row numbers within the file, int64, shape (n,). texts: large_string with nulls. ids:
    string with nulls. split: values of the column that is read for the split key, string with
    nulls; all null if there is none. labels: string arrays by column name. bad: rows that were left
    out because they cannot be encoded. others: the columns of `Columns.others`, with the types of
    the file. others_are_json: whether these are JSON texts instead, string with nulls.
    """

    numbers: npt.NDArray[np.int64]
    texts: pa.Array
    ids: pa.Array
    split: pa.Array
    labels: dict[str, pa.Array]
    bad: list[BadRow] = field(default_factory=list)
    others: dict[str, pa.Array] = field(default_factory=dict)
    others_are_json: bool = False

    def with_text(self) -> Rows:
        """Returns the rows whose text is not null. Each of them is a document."""
        if self.texts.null_count == 0:
            return self
        return self.filter(self.texts.is_valid().to_numpy(zero_copy_only=False), self.bad)

    def filter(self, keep: npt.NDArray[np.bool_], bad: list[BadRow]) -> Rows:
        """Returns the rows where `keep`, shape (n,), is true, with `bad` as their bad rows."""
        mask = pa.array(keep)
        return replace(
            self,
            numbers=self.numbers[keep],
            texts=self.texts.filter(mask),
            ids=self.ids.filter(mask),
            split=self.split.filter(mask),
            labels={name: values.filter(mask) for name, values in self.labels.items()},
            bad=bad,
            others={name: values.filter(mask) for name, values in self.others.items()},
        )

    def sources(self, file: SourceFile, rule: SplitRule) -> pa.RecordBatch:
        """Where rows of a file come from, and hashes: see `source_schema`. All must have text."""
        files = np.full(len(self.numbers), file.index, np.int32)
        sources = pa.record_batch([files, self.numbers, self.ids], ["file", "row", "id"])
        columns = [*sources.columns]
        if rule.by_document:
            columns.append(rule.hashes(sources, self.texts, self.split, file.test))
        if rule.may_leak:
            columns.append(hash_texts(self.texts))
        return pa.record_batch(columns, schema=source_schema(rule))

    @property
    def text_bytes(self) -> int:
        """The bytes of the texts in UTF-8."""
        return pc.sum(pc.binary_length(self.texts)).as_py() or 0
