"""The document table of a shard: which tokens belong to which document.

`metadata/documents/train_0017.parquet` has one row per document with tokens in the shard, in order.
So both lookups are binary searches: a token's document by `offset`, and a document's tokens by
`document`, its number in the stream. The manifest has each shard's first document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.shards.npy import Ranges
from fineshards.shards.parquet_file import open_parquet
from fineshards.shards.split_rule import SplitRule

# document: number in the stream, from 0. offset, length: its tokens in this shard, including EOT.
# start: number of its tokens in earlier shards; 0 if the document
# begins here, with its EOT. file, row: its source. id: its id in the source, or null.
_SCHEMA = pa.schema(
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
_FILE_NUMBER = pa.field("file", pa.int32(), nullable=False)
_NUMBERS = [field.name for field in _SCHEMA if field.type == pa.int64()]

# split_hash: hash of the document's split key (`split_hash.py`), where the split is by document.
# text_hash: hash of its text, where exact duplicates could be in both splits.
_SPLIT_HASH = pa.field("split_hash", pa.uint32(), nullable=False)
_TEXT_HASH = pa.field("text_hash", pa.uint64(), nullable=False)
# redacted: the generation that overwrote its tokens (`fineshards redact`); 0 if none did.
_REDACTED = pa.field("redacted", pa.int32(), nullable=False)
# learned: of a conversation, the begin and the end of each range of its tokens that is learned, in
# order; counted from its EOT, wherever a shard cuts it (`npy.py`).
LEARNED = pa.field(
    "learned", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False
)


def _hashes(rule: SplitRule) -> list[pa.Field]:
    """The columns of hashes that a split rule asks for."""
    fields = [_SPLIT_HASH] if rule.by_document else []
    return [*fields, _TEXT_HASH] if rule.may_leak else fields


def table_schema(rule: SplitRule) -> pa.Schema:
    """The columns of a document table; one of conversations also has LEARNED, as the last."""
    return pa.schema([*_SCHEMA, *_hashes(rule), _REDACTED])


def source_schema(rule: SplitRule, chat: bool = False) -> pa.Schema:
    """What Tokenize says of a document: where it comes from, and its hashes.

    file: position of its file in the input. The rest is as in the document tables. chat: whether it
    is a conversation.
    """
    fields = [_FILE_NUMBER, *(_SCHEMA.field(name) for name in ("row", "id")), *_hashes(rule)]
    return pa.schema([*fields, LEARNED] if chat else fields)


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """One row of a document table; see `table_schema` for the fields."""

    document: int
    offset: int
    length: int
    start: int
    file: str
    row: int
    id: str | None
    split_hash: int | None = None
    text_hash: int | None = None
    redacted: int = 0
    learned: list[int] | None = None


class DocumentTable:
    """A shard's document table in memory.

    document, offset, length, start, row: int64, shape (pieces,). split_hash: uint32, shape
    (pieces,); None where the split is not by document. redacted: int32, shape (pieces,).

    first: number in the dataset of the first document of the table's stream. Numbers of documents
    are those in the dataset.
    """

    def __init__(self, table: pa.Table, first: int = 0) -> None:
        if first:
            numbers = pa.array(table["document"].to_numpy() + first)
            table = table.set_column(0, _SCHEMA.field("document"), numbers)
        self._table = table
        self.document = table["document"].to_numpy()
        self.offset = table["offset"].to_numpy()
        self.length = table["length"].to_numpy()
        self.start = table["start"].to_numpy()
        self.row = table["row"].to_numpy()
        names = table.schema.names
        self.split_hash = table["split_hash"].to_numpy() if "split_hash" in names else None
        self.redacted = table["redacted"].to_numpy()

    @classmethod
    def read(cls, opened: BinaryIO, schema: pa.Schema, first: int = 0) -> DocumentTable:
        """Reads a table; raises pyarrow's errors, or ValueError for another schema."""
        table = open_parquet(opened).read(use_threads=False)
        _check_schema(table.schema, schema)
        table.validate(full=True)
        for field in table.schema:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"has no {field.name!r} in some rows")
        if "learned" in table.schema.names and not _are_ranges(table["learned"].combine_chunks()):
            raise ValueError("has invalid ranges in 'learned'")
        return cls(table, first)

    @staticmethod
    def read_columns(opened: BinaryIO, schema: pa.Schema, names: list[str]) -> pa.Table:
        """Some columns of a table, and nothing else of it; raises as `read` does."""
        parquet = open_parquet(opened)
        _check_schema(parquet.schema_arrow, schema)
        return parquet.read(columns=names, use_threads=False)

    @staticmethod
    def parse(content: bytes) -> pa.Table:
        """The table in a file's content, as it is stored."""
        return open_parquet(BytesIO(content)).read(use_threads=False)

    @staticmethod
    def to_bytes(table: pa.Table) -> bytes:
        """A table's file, with a checksum per page for readers that know no manifest."""
        opened = BytesIO()
        if LEARNED.name in table.schema.names:
            # A table that was read names the items of lists otherwise, and the file has the name.
            at = table.schema.get_field_index(LEARNED.name)
            table = table.set_column(at, LEARNED, table[LEARNED.name])
        # Numbers grow in small steps, and ids are unique, so a dictionary would not help them.
        pq.write_table(
            table,
            opened,
            compression="zstd",
            use_dictionary=["file"],
            column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
        return opened.getvalue()

    def ranges(self) -> Ranges | None:
        """The ranges of tokens in the shard that are learned; None where that is not recorded."""
        return learned_ranges(self._table)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def marked(self, rows: Sequence[int], generation: int | npt.NDArray[np.int64]) -> bytes:
        """The content of the file if a generation, or one each, redacts documents of some rows."""
        marks = self.redacted.copy()
        marks[rows] = generation
        at = self._table.schema.get_field_index("redacted")
        return self.to_bytes(self._table.set_column(at, _REDACTED, pa.array(marks)))

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
            if file_tokens
        }

    def file_numbers(self, numbers: dict[str, int]) -> npt.NDArray[np.int64]:
        """The number of each row's source file, shape (pieces,); -1 for a path not in `numbers`."""
        column = self._table["file"].combine_chunks()
        by_path = np.array(
            [numbers.get(path, -1) for path in column.dictionary.to_pylist()], np.int64
        )
        files: npt.NDArray[np.int64] = by_path[column.indices.to_numpy()]
        return files

    @property
    def ids(self) -> pa.Array:
        """The documents' ids, shape (pieces,)."""
        return self._table["id"].combine_chunks()

    def sources(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Where the documents of some rows come from: the columns file, row and id."""
        return self._table.select(["file", "row", "id"]).take(pa.array(rows))

    def index_of_token(self, offset: int) -> int:
        """The index of the piece that holds the token at `offset` in the shard."""
        return int(np.searchsorted(self.offset, offset, side="right")) - 1

    def index_of_document(self, document: int) -> int:
        """The index of the piece of a document; raises KeyError if it has no tokens here."""
        index = int(np.searchsorted(self.document, document))
        if index == len(self) or self.document[index] != document:
            raise KeyError(document)
        return index


def _are_ranges(lists: pa.ListArray) -> bool:
    """Whether each list has pairs of borders, which grow from 1: an EOT is never learned."""
    lengths, borders = lists.value_lengths().to_numpy(), lists.flatten().to_numpy()
    steps = np.diff(borders, prepend=0)
    firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
    steps[firsts] = borders[firsts]
    return not (np.any(lengths % 2) or np.any(steps < 1))


def _check_schema(actual: pa.Schema, schema: pa.Schema) -> None:
    """Raises ValueError for a schema that is not a table's, of text or of conversations."""
    if not (actual.equals(schema) or actual.equals(schema.append(LEARNED))):
        raise ValueError(f"has the columns {actual.names}, expected {schema.names}")


def learned_ranges(table: pa.Table) -> Ranges | None:
    """Where in its shard the learned tokens of a table's documents are; None without the column.

    Those of a redacted document are not learned.
    """
    if "learned" not in table.schema.names:
        return None
    lists = table["learned"].combine_chunks()
    pairs = lists.flatten().to_numpy().reshape(-1, 2)
    rows = np.repeat(np.arange(len(table)), lists.value_lengths().to_numpy() // 2)
    rows, pairs = rows[visible := table["redacted"].to_numpy()[rows] == 0], pairs[visible]
    offset = table["offset"].to_numpy()[rows]
    end = offset + table["length"].to_numpy()[rows]
    moved = pairs + (offset - table["start"].to_numpy()[rows])[:, None]
    clipped: Ranges = np.clip(moved, offset[:, None], end[:, None])
    within: Ranges = clipped[clipped[:, 0] < clipped[:, 1]]
    return within


def cut_documents(
    block_documents: pa.Table, start: int, stop: int, at: int, first_document: int
) -> pa.Table:
    """Rows for `join_documents`: the documents that overlap tokens `[start, stop)` of a block.

    at: offset in the shard of token `start`. first_document: number in the stream of the block's
    first document.
    """
    offset = block_documents["offset"].to_numpy()
    end = block_documents["end"].to_numpy()
    first = np.maximum(offset, start)
    columns = {
        "document": pa.array(block_documents["document"].to_numpy() + first_document),
        "offset": pa.array(first - start + at),
        "length": pa.array(np.minimum(end, stop) - first),
        "start": pa.array(first - offset),
    }
    for name in block_documents.schema.names:
        if name not in ("document", "offset", "end"):
            columns[name] = block_documents[name]
    columns["redacted"] = pa.array(np.zeros(len(offset), np.int32))
    return pa.table(columns)


def join_documents(parts: Iterable[pa.Table], paths: Sequence[str], rule: SplitRule) -> pa.Table:
    """The document table of a shard, from the rows of its pieces in order.

    paths: of the source files, by index. However the shard was cut into pieces, the result is the
    same.
    """
    tables = [*parts]
    schema = table_schema(rule)
    if "learned" in tables[0].schema.names:
        schema = schema.append(LEARNED)
    tables = [one.select(schema.names) for one in tables]
    numbered = schema.set(schema.get_field_index("file"), _FILE_NUMBER)
    table = pa.concat_tables([one.cast(numbered) for one in tables]).combine_chunks()
    used, indices = np.unique(table["file"].to_numpy(), return_inverse=True)
    names = pa.array([paths[file] for file in used.tolist()], pa.string())
    files = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), names)
    columns = [files if name == "file" else table[name] for name in schema.names]
    return pa.table(columns, schema=schema)
