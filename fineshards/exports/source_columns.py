"""Columns of the sources, for the documents of a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.exports.parts import PartReader
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import Settings
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.scores import scores_there, values_at
from fineshards.sources.chosen_rows import read_rows
from fineshards.sources.finding import as_it_is
from fineshards.sources.reading import discover_blocks, read_block


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


def source_columns(reader: PartReader, names: Sequence[str]) -> SourceColumns:
    """Reads columns of the sources of a part's documents.

    Their types are those in the first source of the dataset.

    Raises InputError for a source that has changed, or has other columns.
    """
    if not names:
        return SourceColumns(pa.table({}))
    manifest, (_, sources) = reader.stream.dataset.manifest, reader.documents()
    settings, schema, are_json = columns_of(manifest, names)

    def read(file: SourceFile, rows: npt.NDArray[np.int64]) -> pa.Table:
        found = _read(file, settings, rows, schema, are_json)
        if len(found) != len(rows):
            raise InputError(f"{file.path} has changed since the dataset was built. Restore it.")
        return found

    return SourceColumns(gathered(manifest, sources, schema, read), are_json)


def scores_of(dataset: Dataset, sources: pa.Table) -> pa.Table:
    """The scores that a recipe gave documents. sources: their files and rows, in any order.

    Raises OutputError if a table of scores is missing or damaged.
    """
    manifest = dataset.manifest
    if not (manifest.settings.recipe and manifest.settings.recipe.scores):
        return pa.table({})

    first = {file.path: file for file in manifest.files}[sources["file"][0].as_py()]
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
    files = {file.path: file for file in manifest.files}
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


def columns_of(manifest: Manifest, names: Sequence[str]) -> tuple[Settings, pa.Schema, bool]:
    """How to read columns, their types in the first source, and whether they are JSON texts.

    Raises InputError if it does not have them.
    """
    columns = replace(manifest.settings.columns, others=tuple(names))
    settings = replace(manifest.settings, columns=columns)
    for file in manifest.files:
        _refuse_touched(file)
        for block in discover_blocks(file, settings.columns, settings.block_bytes)[:1]:
            for rows in read_block(file, settings.columns, block):
                fields = [pa.field(name, values.type) for name, values in rows.others.items()]
                return settings, pa.schema(fields), rows.others_are_json
    raise AssertionError("a dataset with documents has a source with rows")


def _refuse_touched(file: SourceFile) -> None:
    """Raises InputError for a file that may have other rows than were built from."""
    if as_it_is(file) != file:
        raise InputError(
            f"{file.path} was changed, copied or touched since the dataset was built, so its rows "
            "may be others. Restore the file with its time, or leave --columns out."
        )


def _read(
    file: SourceFile,
    settings: Settings,
    wanted: npt.NDArray[np.int64],
    schema: pa.Schema,
    are_json: bool,
) -> pa.Table:
    """The columns of some rows of a file, ascending."""
    _refuse_touched(file)
    tables = [schema.empty_table()]
    for rows in read_rows(file, settings, wanted.tolist()):
        table = pa.table(rows.others)
        try:
            if rows.others_are_json != are_json:
                raise pa.ArrowInvalid("one is JSON Lines, the other is not")
            tables.append(table.cast(schema))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"{file.path}: its columns do not have the types that they have in the first "
                f"source ({error}). Leave them out of --columns."
            ) from error
    return pa.concat_tables(tables)
