"""Rows as every format's reader gives them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# FineWeb's columns whose values are counted in the manifest when a file has them.
LABEL_COLUMNS = ("dump", "language")

# Text decoded at a time. Large enough that per-batch costs vanish, small enough for any worker. The
# number of rows is chosen by the average row, so its limit is what bounds a batch of long ones.
BATCH_BYTES = 8 << 20
BATCH_ROWS = 2048


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be encoded: where it stands and why, in words that complete a sentence."""

    row: int
    place: str
    reason: str


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
