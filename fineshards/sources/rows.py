"""Rows as every format's reader gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.shards.counts import Counts, LabelCount
from fineshards.shards.records import BadRow

# FineWeb's columns whose values are counted in the manifest when a file has them.
LABEL_COLUMNS = ("dump", "language")

# Text decoded at a time. Large enough that per-batch costs vanish, small enough for any worker. The
# number of rows is chosen by the average row, so its limit is what bounds a batch of long ones.
BATCH_BYTES = 8 << 20
BATCH_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of consecutive readable rows.

    numbers: int64, shape (n,), row numbers within the file. texts: large_string with nulls.
    ids: string with nulls. labels: string arrays by column name. bad: rows that were left out.
    """

    numbers: npt.NDArray[np.int64]
    texts: pa.Array
    ids: pa.Array
    labels: dict[str, pa.Array]
    bad: list[BadRow] = field(default_factory=list)

    def with_text(self) -> Rows:
        """The rows whose text is not null: each of them is a document."""
        if self.texts.null_count == 0:
            return self
        return self.chosen(self.texts.is_valid().to_numpy(zero_copy_only=False), self.bad)

    def chosen(self, keep: npt.NDArray[np.bool_], bad: list[BadRow]) -> Rows:
        """The rows that `keep`, shape (n,), is true for; `bad` are the ones left out as bad."""
        mask = pa.array(keep)
        return Rows(
            numbers=self.numbers[keep],
            texts=self.texts.filter(mask),
            ids=self.ids.filter(mask),
            labels={name: values.filter(mask) for name, values in self.labels.items()},
            bad=bad,
        )

    def counts(self) -> Counts:
        """All rows, those without text and those that were rejected."""
        rows = len(self.numbers) + len(self.bad)
        return Counts(rows=rows, nulls=self.texts.null_count, rejected=len(self.bad))

    def document_counts(self, lengths: npt.NDArray[np.int64]) -> Counts:
        """The documents, which all rows must be, with their tokens and labels.

        lengths: tokens of each document, EOT included, int64, shape (n,).
        """
        labels = [
            label
            for column, values in self.labels.items()
            for label in _label_counts(column, values, lengths)
        ]
        return Counts(
            documents=len(self.numbers),
            tokens=int(lengths.sum()),
            text_bytes=pc.sum(pc.binary_length(self.texts)).as_py() or 0,
            labels=tuple(labels),
        )


def _label_counts(
    column: str, values: pa.Array, lengths: npt.NDArray[np.int64]
) -> Iterator[LabelCount]:
    # Arrow's group_by does the same, but takes two milliseconds to begin.
    known = values.is_valid().to_numpy(zero_copy_only=False)
    coded = values.filter(pa.array(known)).dictionary_encode()
    number = coded.indices.to_numpy()
    documents = np.bincount(number, minlength=len(coded.dictionary))
    # Sums in float64 are exact here: a batch has far fewer than 2**53 tokens.
    tokens = np.bincount(number, weights=lengths[known], minlength=len(coded.dictionary))
    for index, value in enumerate(coded.dictionary.to_pylist()):
        yield LabelCount(column, value, int(documents[index]), int(tokens[index]))
