"""Columns of the sources, for the documents of a part, and their types in all sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.record import replace
from fineshards.shards.tables.scores import scores_there, values_at
from fineshards.sources.files import as_it_is
from fineshards.sources.formats.format import FORMATS
from fineshards.sources.reading import RowReader, column_types, discover_blocks, read_block

# Footers that are read at once: of sources in stores, each is a request or two.
_THREADS = 16
# Sources that are kept open.
_MOST_OPEN = 8


def settings_with(settings: Settings, names: Sequence[str]) -> Settings:
    """The settings of a dataset, to read other columns of its sources."""
    return replace(settings, columns=replace(settings.columns, others=tuple(names)))


def types_in_sources(
    manifest: Manifest, names: Sequence[str], trust_input: bool = False
) -> pa.Schema:
    """The types of columns that hold those of all sources.

    trust_input: whether sources of another version may be read. Raises InputError for a source
    that lacks a column, for types that have no common one, and for a field of JSON Lines that no
    row has.
    """
    settings = settings_with(manifest.settings, names)
    with ThreadPoolExecutor(_THREADS) as pool:
        files = [*pool.map(partial(as_it_is, trust_input=trust_input), manifest.files)]
        (schema, *others) = pool.map(lambda file: column_types(file, settings.columns), files)
    first, are_json = files[0], not FORMATS[files[0].format].typed
    for file, other in zip(files[1:], others, strict=True):
        try:
            if FORMATS[file.format].typed == are_json:
                raise pa.ArrowTypeError("one has types, the other has not")
            schema = pa.unify_schemas([schema, other], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"{file.path}: its columns have other types than those of {first.path} ({error}). "
                "Leave these columns out."
            ) from error
    if are_json:
        _refuse_unknown(files, settings)
    return schema


def _refuse_unknown(files: Sequence[SourceFile], settings: Settings) -> None:
    """Raises InputError for a field that no row has: it would be a column of nulls."""
    missing = set(settings.columns.others)
    for file in files:
        for block in discover_blocks(file, settings.columns, settings.block_bytes):
            for rows in read_block(file, settings.columns, block):
                missing -= {
                    name for name, values in rows.others.items() if values.null_count < len(values)
                }
                if not missing:
                    return
    raise InputError(
        f"no row of the sources has {', '.join(map(repr, sorted(missing)))}. Correct the name, or "
        "leave it out."
    )


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """Columns of the sources, a row per document. are_json: whether the values are JSON texts."""

    table: pa.Table
    are_json: bool = False

    def for_json(self) -> SourceColumns:
        """The same with dates, times and decimals as text."""
        fields = [
            pa.field(field.name, pa.string() if written_as_text(field.type) else field.type)
            for field in self.table.schema
        ]
        return SourceColumns(self.table.cast(pa.schema(fields)), self.are_json)

    def as_text(self) -> SourceColumns:
        """The same with JSON strings as their text, and other values as their JSON text."""
        if not self.are_json:
            return self
        texts = {
            name: pa.array([_text_of(value) for value in self.table[name].to_pylist()], pa.string())
            for name in self.table.column_names
        }
        return SourceColumns(pa.table(texts))


def written_as_text(kind: pa.DataType) -> bool:
    """Whether JSON has the values of a type as text: dates, times and decimals."""
    types = pa.types
    moments = types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind)
    return bool(moments or types.is_decimal(kind))


class ColumnReader:
    """Reads columns of the sources of a dataset, for any number of threads.

    A file is read on from where another call has ended, so that files in the order of the dataset
    are read about once per thread.
    """

    def __init__(self, manifest: Manifest, schema: pa.Schema, trust_input: bool = False) -> None:
        self._manifest, self._schema = manifest, schema
        self._trust_input = trust_input
        self._settings = settings_with(manifest.settings, schema.names)
        self._lock = Lock()
        self._idle: list[RowReader] = []

    def read(self, sources: pa.Table) -> SourceColumns:
        """The columns of documents, given by their files and rows.

        Raises InputError for a source that has changed.
        """
        table = gathered(self._manifest, sources, self._schema, self._read)
        # `types_in_sources` refuses a mix of files with and without types.
        return SourceColumns(table, not FORMATS[self._manifest.files[0].format].typed)

    def _read(self, file: SourceFile, wanted: npt.NDArray[np.int64]) -> pa.Table:
        """The columns of some rows of a file, ascending."""
        file = as_it_is(file, self._trust_input)
        tables, reader = [self._schema.empty_table()], self._reader(file)
        for rows in reader.read(wanted):
            try:
                tables.append(pa.table(rows.others).cast(self._schema))
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"{file.path}: a value does not fit into the type that its column has in all "
                    f"sources ({error}). Leave it out."
                ) from error
        with self._lock:
            self._idle = [*self._idle, reader][-_MOST_OPEN:]
        table = pa.concat_tables(tables)
        if len(table) != len(wanted):
            raise InputError(f"{file.path} has changed since the dataset was built. Restore it.")
        return table

    def _reader(self, file: SourceFile) -> RowReader:
        """A reader of a file that no other thread uses."""
        with self._lock:
            for place, reader in enumerate(self._idle):
                if reader.file == file:
                    return self._idle.pop(place)
        return RowReader(file, self._settings)


def scores_of(dataset: Dataset, sources: pa.Table) -> pa.Table:
    """The scores that a recipe gave documents. sources: their files and rows, in any order.

    Raises OutputError if a table of scores is missing or damaged.
    """
    manifest = dataset.manifest
    if not (manifest.settings.recipe and manifest.settings.recipe.scores):
        return pa.table({})

    first = {file.name: file for file in manifest.files}[sources["file"][0].as_py()]
    return gathered(
        manifest,
        sources,
        pa.schema([*scores_there(dataset.storage, first.index).schema][1:]),
        lambda file, rows: pa.table(values_at(scores_there(dataset.storage, file.index), rows)),
    )


def gathered(
    manifest: Manifest,
    sources: pa.Table,
    schema: pa.Schema,
    read: Callable[[SourceFile, npt.NDArray[np.int64]], pa.Table],
) -> pa.Table:
    """A row per document of what is read of each file for some rows, ascending."""
    files = {file.name: file for file in manifest.files}
    paths = sources["file"].combine_chunks().dictionary_encode()
    codes, rows = paths.indices.to_numpy(), sources["row"].to_numpy()
    tables, places = [schema.empty_table()], []
    for code, path in enumerate(paths.dictionary.to_pylist()):
        there = np.flatnonzero(codes == code)
        there = there[np.argsort(rows[there])]
        places.append(there)
        tables.append(read(files[path], rows[there]).cast(schema))
    return pa.concat_tables(tables).take(np.argsort(np.concatenate(places)))


def _text_of(value: str | None) -> str | None:
    return str(orjson.loads(value)) if value is not None and value[0] == '"' else value
