"""Columns of the sources, for the documents of a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.exports.column_types import ColumnTypes, settings_with
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.scores import scores_there, values_at
from fineshards.sources.finding import as_it_is
from fineshards.sources.reading import RowReader

# Sources that are kept open.
_MOST_OPEN = 8


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
        return replace(self, table=self.table.cast(pa.schema(fields)))

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

    def __init__(self, manifest: Manifest, types: ColumnTypes, trust_input: bool = False) -> None:
        self._manifest, self._types = manifest, types
        self._trust_input = trust_input
        self._settings = settings_with(manifest.settings, types.schema.names)
        self._lock = Lock()
        self._idle: list[RowReader] = []

    def read(self, sources: pa.Table) -> SourceColumns:
        """The columns of documents, given by their files and rows.

        Raises InputError for a source that has changed.
        """
        table = gathered(self._manifest, sources, self._types.schema, self._read)
        return SourceColumns(table, self._types.are_json)

    def _read(self, file: SourceFile, wanted: npt.NDArray[np.int64]) -> pa.Table:
        """The columns of some rows of a file, ascending."""
        file = as_it_is(file, self._trust_input)
        tables, reader = [self._types.schema.empty_table()], self._reader(file)
        for rows in reader.read(wanted):
            try:
                tables.append(pa.table(rows.others).cast(self._types.schema))
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"{file.path}: a value does not fit into the type that its column has in all "
                    f"sources ({error}). Leave it out."
                ) from error
        with self._lock:
            self._idle = [*self._idle, reader][-_MOST_OPEN:]
        found = pa.concat_tables(tables)
        if len(found) != len(wanted):
            raise InputError(f"{file.path} has changed since the dataset was built. Restore it.")
        return found

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
