"""The table of blocks: how many documents and tokens each block of the input gave.

    metadata/blocks.parquet                     blocks of the first generation
    metadata/generations/0002.blocks.parquet    those of the files that the second one added

By them repair finds the blocks that a shard is made of. There is one row per block, in the order of
the input. Rows depend on the input and on the settings of the job, of which `block_bytes` decides
where blocks end, and not on workers, runners or restarts. 675,000 blocks take 4 to 7 MB.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.shards.counts import BlockSummary, Counts, Sums
from fineshards.shards.job.records import MetadataFile, write_metadata
from fineshards.shards.parquet_file import parquet_bytes, read_table
from fineshards.storage.base import Storage

# file: number of the source file. documents, tokens: of both splits. test_…: what went to the test
# split, where the split is by document; otherwise 0.
COLUMNS = ("file", "documents", "tokens", "test_documents", "test_tokens")
_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in COLUMNS])

# Rows of the table: shape (blocks, 5).
Rows = npt.NDArray[np.int64]


def rows_of(summaries: Sequence[BlockSummary]) -> Rows:
    """The rows of the blocks of a file, from their summaries in order."""
    rows = np.zeros((len(summaries), len(COLUMNS)), np.int64)
    for row, summary in zip(rows, summaries, strict=True):
        test = summary.test or Sums(0, 0)
        counts = summary.counts
        row[:] = summary.file, counts.documents, counts.tokens, test.documents, test.tokens
    return rows


def write_blocks(storage: Storage, name: str, files: Iterable[Rows]) -> MetadataFile:
    """Writes the table of a generation. files: the rows of each file, in any order."""
    rows = np.concatenate([rows_of([]), *files])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    content = parquet_bytes(pa.table([*rows.T], schema=_SCHEMA))
    return write_metadata(storage, name, content)


def read_blocks(storage: Storage, names: Iterable[str]) -> Rows:
    """The rows of tables, in order; raises OutputError if one is missing or damaged."""
    tables = [rows_of([])]
    for name in names:
        table = read_table(storage.read(name), storage.path(name), _SCHEMA)
        tables.append(np.stack([table[column].to_numpy() for column in COLUMNS], axis=1))
    return np.concatenate(tables)


def blocks_of_file(rows: Rows, file: int, by_document: bool) -> list[BlockSummary]:
    """What rows say of the blocks of a file, as summaries of them."""
    first, stop = np.searchsorted(rows[:, 0], [file, file + 1])
    return [
        BlockSummary(
            file,
            index,
            int(stop - first),
            Counts(documents=documents, tokens=tokens),
            Sums(*test) if by_document else None,
        )
        for index, (_, documents, tokens, *test) in enumerate(rows[first:stop].tolist())
    ]
