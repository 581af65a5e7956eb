"""Some documents of a source file, by their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows


class RowReader:
    """Reads some documents of a source file, and from there on later ones.

    So a file whose blocks cannot be entered is read once, if each call asks for later rows than
    the one before.

    Raises InputError if the file has changed, or cannot be read.
    """

    def __init__(self, file: SourceFile, settings: Settings) -> None:
        self.file = file
        self._columns = settings.columns
        self._blocks = discover_blocks(file, self._columns, settings.block_bytes)
        self._starts = [block.first_row for block in self._blocks]
        # The block that is read, what is left of it, and the record batch before that.
        self._number = -1
        self._left: Iterator[Rows] = iter(())
        self._last: Rows | None = None

    def read(self, wanted: Collection[int]) -> Iterator[Rows]:
        """Those of some rows that are documents, in order.

        Reads only the blocks that they are in, and none further than the last of them.
        """
        rows = np.array(sorted(wanted), np.int64)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = rows[numbers == number]
            for found in self._from(number, int(here[0])):
                documents = found.with_text()
                there = np.isin(documents.numbers, here)
                if there.any():
                    yield documents.filter(there, [])
                if len(found.numbers) and found.numbers[-1] >= here[-1]:
                    break

    def _from(self, number: int, row: int) -> Iterator[Rows]:
        """The record batches of a block, at the latest from the one that has a row."""
        passed = self._last is None or not len(self._last.numbers) or self._last.numbers[0] > row
        if number != self._number or passed:
            self._number, self._last = number, None
            self._left = read_block(self.file, self._columns, self._blocks[number])
        if self._last is not None:
            yield self._last
        for rows in self._left:
            self._last = rows
            yield rows


def read_rows(file: SourceFile, settings: Settings, wanted: Collection[int]) -> Iterator[Rows]:
    """Those of some rows of a source file that are documents, in order; see `RowReader`."""
    if wanted:
        yield from RowReader(file, settings).read(wanted)
