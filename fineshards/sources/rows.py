"""Rows as the readers of all formats return them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.shards.counts import Counts, LabelCount, Unextracted
from fineshards.shards.job.records import BadRow, SourceFile
from fineshards.shards.split_hash import hash_texts
from fineshards.shards.split_rule import SplitRule
from fineshards.shards.tables.documents import source_schema

# Columns of FineWeb whose values are counted in the manifest, if a file has them.
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
        return Rows(
            numbers=self.numbers[keep],
            texts=self.texts.filter(mask),
            ids=self.ids.filter(mask),
            split=self.split.filter(mask),
            labels={name: values.filter(mask) for name, values in self.labels.items()},
            bad=bad,
            others={name: values.filter(mask) for name, values in self.others.items()},
            others_are_json=self.others_are_json,
        )

    def sources(self, file: SourceFile, rule: SplitRule) -> pa.RecordBatch:
        """Where rows of a file come from, and hashes: see `source_schema`. All must have text."""
        files = np.full(len(self.numbers), file.index, np.int32)
        sources = pa.record_batch([files, self.numbers, self.ids], ["file", "row", "id"])
        columns: list[Any] = sources.columns
        if rule.by_document:
            columns.append(rule.hashes(sources, self.texts, self.split, file.test))
        if rule.may_leak:
            columns.append(hash_texts(self.texts))
        return pa.record_batch(columns, schema=source_schema(rule))

    def counts(self) -> Counts:
        """Counts all rows, and those that are left out."""
        pages = Counter(bad.unextracted for bad in self.bad if bad.unextracted is not None)
        return Counts(
            rows=len(self.numbers) + len(self.bad),
            nulls=self.texts.null_count,
            rejected=len(self.bad) - pages.total(),
            unextracted=tuple(starmap(Unextracted, sorted(pages.items()))),
        )

    @property
    def text_bytes(self) -> int:
        """The bytes of the texts in UTF-8."""
        return pc.sum(pc.binary_length(self.texts)).as_py() or 0

    def document_counts(self, lengths: npt.NDArray[np.int64]) -> Counts:
        """Counts documents, tokens, text and labels. All rows must have text.

        lengths: tokens per document, EOT included, int64, shape (n,).
        """
        labels: dict[tuple[str, str], list[int]] = {}
        for column, values in self.labels.items():
            for value, length in zip(values.to_pylist(), lengths.tolist(), strict=True):
                if value is not None:
                    sums = labels.setdefault((column, value), [0, 0])
                    sums[0] += 1
                    sums[1] += length
        return Counts(
            documents=len(self.numbers),
            tokens=int(lengths.sum()),
            text_bytes=self.text_bytes,
            labels=tuple(LabelCount(*label, *sums) for label, sums in labels.items()),
        )
