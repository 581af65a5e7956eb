"""The document table of a shard: which tokens belong to which document.

`metadata/documents/train_0017.parquet` has one row per document with tokens in the shard, in order.
So both lookups are binary searches: a token's document by `offset`, and a document's tokens by
`document`, its number in the dataset. The manifest has each shard's first document.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.storage.parquet import open_parquet

# document: number in the dataset, from 0. offset, length: its tokens in this shard, including EOT.
# start: number of its tokens in earlier shards; 0 if the document begins here, with its EOT.
# file, row: its source. id: its id in the source, or null.
SCHEMA = pa.schema(
    [
        pa.field("document", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("file", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
    ]
)

# split_hash: hash of the document's split key (`split_hash.py`), where the split is by document.
SCHEMA_WITH_HASH = SCHEMA.append(pa.field("split_hash", pa.uint32(), nullable=False))

_NUMBERS = [field.name for field in SCHEMA if field.type == pa.int64()]


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """One row of a document table; see SCHEMA and SCHEMA_WITH_HASH for the fields."""

    document: int
    offset: int
    length: int
    start: int
    file: str
    row: int
    id: str | None
    split_hash: int | None = None


class DocumentTable:
    """A shard's document table in memory.

    document, offset, length, start, row: int64, shape (pieces,). split_hash: uint32, shape
    (pieces,); None where the split is not by document.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.document = table["document"].to_numpy()
        self.offset = table["offset"].to_numpy()
        self.length = table["length"].to_numpy()
        self.start = table["start"].to_numpy()
        self.row = table["row"].to_numpy()
        with_hash = table.schema.equals(SCHEMA_WITH_HASH)
        self.split_hash = table["split_hash"].to_numpy() if with_hash else None

    @classmethod
    def read(cls, opened: BinaryIO, schema: pa.Schema = SCHEMA) -> DocumentTable:
        """Reads a table; raises pyarrow's errors, or ValueError for another schema."""
        table = open_parquet(opened).read(use_threads=False)
        if not table.schema.equals(schema):
            raise ValueError(f"has the columns {table.schema.names}, expected {schema.names}")
        table.validate(full=True)
        for field in SCHEMA:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"has no {field.name!r} in some rows")
        return cls(table)

    @staticmethod
    def read_ids(opened: BinaryIO, schema: pa.Schema = SCHEMA) -> pa.ChunkedArray:
        """The ids of a table, and nothing else of it; raises as `read` does."""
        parquet = open_parquet(opened)
        found = parquet.schema_arrow
        if not found.equals(schema):
            raise ValueError(f"has the columns {found.names}, expected {schema.names}")
        return parquet.read(columns=["id"], use_threads=False)["id"]

    @staticmethod
    def write(table: pa.Table, opened: BinaryIO) -> None:
        """Writes a table, with a checksum per page for readers that know no manifest."""
        # Numbers grow in small steps, and ids are unique, so a dictionary would not help them.
        pq.write_table(
            table,
            opened,
            compression="zstd",
            use_dictionary=["file"],
            column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def piece(self, index: int) -> DocumentPiece:
        """Row `index` of the table; raises IndexError beyond its ends."""
        (fields,) = self._table.slice(range(len(self))[index], 1).to_pylist()
        return DocumentPiece(**fields)

    def sums_by_file(self) -> dict[str, tuple[int, int]]:
        """For each source file: tokens in this shard, and documents that begin in the shard."""
        column = self._table["file"].combine_chunks()
        indices, paths = column.indices.to_numpy(), column.dictionary.to_pylist()
        # Sums in float64 are exact here: a shard has far fewer than 2**53 tokens.
        tokens = np.bincount(indices, weights=self.length, minlength=len(paths))
        begun = np.bincount(indices[self.start == 0], minlength=len(paths))
        return {
            path: (int(file_tokens), int(file_documents))
            for path, file_tokens, file_documents in zip(paths, tokens, begun, strict=True)
        }

    def file_numbers(self, numbers: dict[str, int]) -> npt.NDArray[np.int64]:
        """The number of each row's source file, shape (pieces,); -1 for a path not in `numbers`."""
        column = self._table["file"].combine_chunks()
        known = np.array(
            [numbers.get(path, -1) for path in column.dictionary.to_pylist()], np.int64
        )
        found: npt.NDArray[np.int64] = known[column.indices.to_numpy()]
        return found

    @property
    def ids(self) -> pa.Array:
        """The documents' ids, shape (pieces,)."""
        return self._table["id"].combine_chunks()

    def follows_sources(self, numbers: dict[str, int]) -> bool:
        """Whether files are in the order of their numbers, and rows ascend within each file.

        numbers: file numbers by path.
        """
        steps = np.diff(self.file_numbers(numbers))
        return bool(np.all((steps > 0) | ((steps == 0) & (np.diff(self.row) > 0))))

    def index_of_token(self, offset: int) -> int:
        """The index of the piece that holds the token at `offset` in the shard."""
        return int(np.searchsorted(self.offset, offset, side="right")) - 1

    def index_of_document(self, document: int) -> int:
        """The index of the piece of a document; raises KeyError if it has no tokens here."""
        index = int(np.searchsorted(self.document, document))
        if index == len(self) or self.document[index] != document:
            raise KeyError(document)
        return index


def cut_documents(
    block_documents: pa.Table, start: int, stop: int, at: int, first_document: int, path: str
) -> pa.Table:
    """Rows of a document table, for the documents that overlap tokens `[start, stop)` of a block.

    at: offset in the shard of token `start`. first_document: number in the dataset of the block's
    first document in this stream. path: of the block's source file.
    """
    offset = block_documents["offset"].to_numpy()
    end = block_documents["end"].to_numpy()
    first = np.maximum(offset, start)
    files = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(offset), np.int32)), [path])
    columns = [
        block_documents["document"].to_numpy() + first_document,
        first - start + at,
        np.minimum(end, stop) - first,
        first - offset,
        files,
        block_documents["row"],
        block_documents["id"],
    ]
    if "split_hash" not in block_documents.schema.names:
        return pa.table(columns, schema=SCHEMA)
    return pa.table([*columns, block_documents["split_hash"]], schema=SCHEMA_WITH_HASH)


def join_documents(parts: Iterable[pa.Table]) -> pa.Table:
    """The document table of a shard, from the rows of its pieces in order."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()
