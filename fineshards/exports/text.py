"""Curated text: a row per document, to be published, or tokenized by others.

Texts are decoded from the tokens, so neither the sources nor the recipe are needed. Each text is
encoded again and compared with its tokens, so a build of the files gives the same shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_encoder
from fineshards.errors import UsageError
from fineshards.exports.copies import SCHEMA as COPIES
from fineshards.exports.copies import copies_of
from fineshards.exports.format import ExportSettings, Format, Target, Written
from fineshards.exports.input_ids import batches
from fineshards.exports.parts import PartReader
from fineshards.exports.source_columns import SourceColumns, scores_of, written_as_text

# id: null without an id column. file: the name of the source, as document tables have it.
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)


class TextFormat(Format):
    """What the formats of text have in common."""

    sides = ("begin",)
    tokens_per_file = "shard"
    whole_documents = True
    fixed_dtype = "no tokens"
    own_columns = (*_SCHEMA.names, *COPIES.names)


class TextParquet(TextFormat):
    """Parquet, as FineWeb has it."""

    name = "text"
    libraries = ("pyarrow",)
    reading = 'load_dataset("FOLDER")["train"]'

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        rows = _Rows(reader, settings, SourceColumns.as_text)
        options = {"compression": "zstd", "write_page_checksum": True}
        with (
            target.create(f"{rows.name}.parquet") as file,
            pq.ParquetWriter(file, rows.schema, **options) as writer,
        ):
            for table in rows.tables():
                writer.write_table(table, row_group_size=len(table))
        return Written(len(rows.ends))


class TextJsonLines(TextFormat):
    """JSON Lines, compressed with zstd."""

    name = "text-jsonl"
    libraries = ("pyarrow", "orjson")
    reading = 'load_dataset("json", data_files="FOLDER/data/*")'

    def check_columns(self, columns: pa.Schema) -> None:
        for field in columns:
            if not (_is_json(field.type) or written_as_text(field.type)):
                raise UsageError(
                    f"--columns {field.name}: its type is {field.type}, which JSON does not have. "
                    "Use --to text."
                )

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        rows = _Rows(reader, settings, SourceColumns.for_json)
        with (
            target.create(f"{rows.name}.jsonl.zst") as file,
            pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as compressed,
        ):
            for table in rows.tables():
                for row in table.to_pylist():
                    compressed.write(_line(row, rows.columns))
        return Written(len(rows.ends))


class _Rows:
    """The documents of a part as rows. written: gives columns of the sources their written form."""

    def __init__(
        self,
        reader: PartReader,
        settings: ExportSettings,
        written: Callable[[SourceColumns], SourceColumns],
    ) -> None:
        part, dataset = reader.part, reader.stream.dataset
        # A folder without `export.json`, so that it is an input as it is; as on the hub.
        # `load_dataset` refuses a split with the name `all`.
        split = "train" if part.split == "all" else part.split
        self.name = f"data/{split}-{part.index:05d}-of-{part.count:05d}"
        self.ends, self._sources = reader.documents()
        self.columns = SourceColumns(pa.table({}))
        if (columns := reader.stream.columns) is not None:
            self.columns = written(columns.read(self._sources))
        more = [self.columns.table, scores_of(dataset, self._sources)]
        if settings.copies:
            more.append(copies_of(dataset, self._sources))
        self.schema = pa.schema([*_SCHEMA, *(field for table in more for field in table.schema)])
        self._reader = reader
        self._more = [column for table in more for column in table.columns]

    def tables(self) -> Iterator[pa.Table]:
        """The rows, some millions of tokens at a time."""
        dataset = self._reader.stream.dataset
        encoder = load_encoder(dataset.manifest.settings.tokenizer, dataset.storage, "auto")
        first = 0
        for batch in batches(self._reader, self.ends):
            some = self._sources.slice(first, len(batch))
            texts = _texts(encoder, batch["input_ids"], some)
            more = [column.slice(first, len(batch)) for column in self._more]
            values = [some["id"], texts, some["file"], some["row"], *more]
            yield pa.table(values, schema=self.schema)
            first += len(batch)


def _is_json(kind: pa.DataType) -> bool:
    """Whether the values of a type are JSON as they are."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        return _is_json(kind.value_type)
    if types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    number = types.is_integer(kind) or types.is_floating(kind)
    return text or number or bool(types.is_boolean(kind) or types.is_null(kind))


def _line(row: dict[str, Any], columns: SourceColumns) -> bytes:
    """A row as a line of JSON."""
    if columns.are_json:
        for name in columns.table.column_names:
            if row[name] is not None:
                row[name] = orjson.Fragment(row[name])
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _texts(encoder: Encoder, documents: pa.ListArray, sources: pa.Table) -> pa.Array:
    """The texts of documents, given by their tokens: large_string, shape (documents,).

    sources: for messages.
    """
    offsets, tokens = documents.offsets.to_numpy(), documents.values.to_numpy().view(np.uint32)
    texts = encoder.decode_all(tokens, offsets)
    again = encoder.encode(texts)
    if np.array_equal(again.tokens, tokens):
        return texts
    for number, (begin, end) in enumerate(pairwise(offsets)):
        if not np.array_equal(again.document(number), tokens[begin:end]):
            raise UsageError(
                f"row {sources['row'][number]} of {sources['file'][number]} cannot be written as "
                f"text: {encoder.name} encodes the text that its tokens stand for as other tokens. "
                "Publish the source instead."
            )
    raise AssertionError
