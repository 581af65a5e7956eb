"""Some documents of a source file, by their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from fineshards.shards.job.job import Settings
from fineshards.shards.job.records import SourceFile
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows


def read_rows(file: SourceFile, settings: Settings, wanted: Collection[int]) -> Iterator[Rows]:
    """Those of some rows of a source file that are documents, in order.

    Reads only the blocks that they are in, and no further than the last of them. Raises InputError
    if the file has changed, or cannot be read.
    """
    left = np.array(sorted(wanted), np.int64)
    if not len(left):
        return
    blocks = discover_blocks(file, settings.columns, settings.block_bytes)
    ends = [block.first_row for block in blocks[1:]] + [None]
    for block, end in zip(blocks, ends, strict=True):
        if not np.any((left >= block.first_row) & (True if end is None else left < end)):
            continue
        for rows in read_block(file, settings.columns, block):
            found = rows.with_text()
            there = np.isin(found.numbers, left)
            if there.any():
                yield found.filter(there, [])
            if len(rows.numbers) and rows.numbers[-1] >= left[-1]:
                return
