"""Curated text: a row per document, to be published, or tokenized by others.

Texts are decoded from the tokens, so neither the sources nor the recipe are needed. Each text is
encoded again and compared with its tokens, so a build of the files gives the same shards.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineshards.encoders.encoder import Encoder
from fineshards.encoders.loading import load_encoder
from fineshards.errors import UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.input_ids import batches
from fineshards.exports.parts import PartReader
from fineshards.exports.source_columns import SourceColumns, gathered, scores_of, written_as_text
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.decisions import read_decisions

# exact: duplicates by equal keys. near: those of `minhash`.
COPIES = pa.schema([pa.field(f"{kind}_copies", pa.int64(), False) for kind in ("exact", "near")])

# Threads wait for the first one, which counts.
_COUNTING = Lock()


class _Counts(NamedTuple):
    """Documents with dropped duplicates, ascending, and how many of each kind; shape (n,)."""

    documents: npt.NDArray[np.int64]
    exact: npt.NDArray[np.int64]
    near: npt.NDArray[np.int64]


def copies_of(dataset: Dataset, sources: pa.Table) -> pa.Table:
    """The numbers of duplicates of documents. sources: their files and rows."""
    with _COUNTING:
        counts = _count(dataset)

    def of(file: SourceFile, rows: npt.NDArray[np.int64]) -> pa.Table:
        documents = _places(file.index, rows)
        at = np.searchsorted(counts.documents, documents)
        counted = np.append(counts.documents, -1)[at] == documents
        columns = [np.where(counted, np.append(kind, 0)[at], 0) for kind in counts[1:]]
        return pa.table(columns, schema=COPIES)

    return gathered(dataset.manifest, sources, COPIES, of)


@lru_cache(maxsize=1)
def _count(dataset: Dataset) -> _Counts:
    """Counts the dropped duplicates of all documents, in memory."""
    recipe = dataset.manifest.settings.recipe
    assert recipe is not None
    is_near = np.array([step.use == "minhash" for step in recipe.steps])
    dropped, witnesses, near = [], [], []
    for file in dataset.manifest.files:
        table = read_decisions(dataset.storage, file.index).table
        # Witnesses of `seen_in` are in other datasets.
        whole = pc.and_(pc.is_null(table["span"]), pc.greater_equal(table["witness_file"], 0))
        table = table.filter(whole)
        dropped.append(_places(file.index, table["row"].to_numpy()))
        witnesses.append(_places(table["witness_file"].to_numpy(), table["witness_row"].to_numpy()))
        near.append(is_near[table["step"].to_numpy()])
    return _counted(np.concatenate(dropped), np.concatenate(witnesses), np.concatenate(near))


def _places(
    files: int | npt.NDArray[np.integer], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """One number per document, in the order of the input."""
    places: npt.NDArray[np.int64] = (np.int64(files) << 40) | rows
    return places


def _counted(
    dropped: npt.NDArray[np.int64], witnesses: npt.NDArray[np.int64], near: npt.NDArray[np.bool_]
) -> _Counts:
    """Counts duplicates. dropped: ascending."""
    owners = witnesses
    # Each round doubles the number of witnesses that are passed over.
    while len(dropped):
        places = np.searchsorted(dropped, owners).clip(max=len(dropped) - 1)
        again = dropped[places] == owners
        if not again.any():
            break
        owners = np.where(again, owners[places], owners)
    documents, numbers = np.unique(owners, return_inverse=True)
    exact, alike = (np.bincount(numbers[kind], minlength=len(documents)) for kind in (~near, near))
    return _Counts(documents, exact, alike)


# id: null without an id column. file: the name of the source, as document tables have it.
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)


class TextFormat(ExportFormat):
    """Base class of the formats of text."""

    sides = ("begin",)
    tokens_per_file = "shard"
    whole_documents = True
    fixed_dtype = "no tokens"
    own_columns = (*_SCHEMA.names, *COPIES.names)


class TextParquet(TextFormat):
    """Parquet, as FineWeb has it."""

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

    libraries = ("pyarrow", "orjson")
    reading = 'load_dataset("FOLDER")["train"]'

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
