"""The first documents of an input, for trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.reading import discover_blocks, read_block

_BLOCK_BYTES = 16 << 20


def first_documents(files: Sequence[SourceFile], columns: Columns, limit: int) -> list[SourceFile]:
    """The files that hold the first `limit` documents, of which the last ends with its last one.

    All files as they are, if they have no more. Raises InputError for a file that cannot be read.
    """
    left = limit
    for position, file in enumerate(files):
        for block in discover_blocks(file, columns, _BLOCK_BYTES):
            for rows in read_block(file, columns, block):
                documents = rows.numbers[rows.texts.is_valid().to_numpy(zero_copy_only=False)]
                if len(documents) >= left:
                    last = replace(file, stop_row=int(np.sort(documents)[left - 1]) + 1)
                    return [*files[:position], last]
                left -= len(documents)
    return list(files)
