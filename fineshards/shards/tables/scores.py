"""Scores: the numbers and labels that the steps `score` of a recipe gave the documents of a file.

A table has `row`, the number in the source file, and a column per score: float64 or large_string,
because the labels of a file may have more than 2 GiB. It is null where the step gave nothing, or
where an earlier step dropped the document. Rows are sorted and unique, so the bytes depend on the
job alone.
"""

import io
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import OutputError
from fineshards.shards.layout import file_table
from fineshards.shards.parquet_file import damaged, open_parquet, parquet_bytes
from fineshards.storage.base import Storage

_ROW = pa.field("row", pa.int64(), nullable=False)
# What a score may be.
TYPES = (pa.float64(), pa.large_string())


def score_schema(types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of a table of scores. types: by name, in the order of the steps."""
    return pa.schema([_ROW, *(pa.field(name, kind) for name, kind in types.items())])


def scored(rows: npt.NDArray[np.int64], name: str, values: pa.Array) -> pa.Table:
    """What one step gave some documents, which are in the given rows."""
    return pa.table({"row": rows, name: values})


def joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """One table of several, each of which has some rows and some of the columns of a schema."""
    rows = np.unique(np.concatenate([np.empty(0, np.int64), *map(_rows, tables)]))
    columns = [pa.array(rows)]
    for field in list(schema)[1:]:
        of_step = pa.schema([_ROW, field])
        with_field = [table for table in tables if field.name in table.column_names]
        chosen = [table.select(of_step.names).cast(of_step) for table in with_field]
        whole = pa.concat_tables([of_step.empty_table(), *chosen]).sort_by("row")
        columns.append(values_at(whole, rows)[field.name])
    return pa.table(columns, schema=schema)


def values_at(table: pa.Table, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """The scores of some rows, shape (n,), by name; null for a row that the table does not have."""
    table_rows = _rows(table)
    places = np.searchsorted(table_rows, rows)
    there = np.zeros(len(rows), np.bool_)
    inside = places < len(table_rows)
    there[inside] = table_rows[places[inside]] == rows[inside]
    indices = pa.array(places, mask=~there)
    return {name: table[name].take(indices).combine_chunks() for name in table.column_names[1:]}


def _rows(table: pa.Table) -> npt.NDArray[np.int64]:
    rows: npt.NDArray[np.int64] = table["row"].to_numpy()
    return rows


def to_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file, whose pages have checksums."""
    return parquet_bytes(table.combine_chunks())


def from_bytes(content: bytes, path: str) -> pa.Table:
    """The inverse of `to_bytes`; raises OutputError, with the path, if it is damaged."""
    try:
        table: pa.Table = open_parquet(io.BytesIO(content)).read(use_threads=False)
        types = {field.name: field.type for field in list(table.schema)[1:]}
        # Parquet has one type of texts.
        types |= {name: pa.large_string() for name, kind in types.items() if kind == pa.string()}
        if table.column_names[:1] != ["row"] or not set(types.values()) <= {*TYPES}:
            raise ValueError(f"its columns are {table.schema.to_string(show_field_metadata=False)}")
        return table.cast(score_schema(types))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, error) from error


def scores_there(storage: Storage, file: int) -> pa.Table:
    """The scores of a source file with documents; raises OutputError if they are missing."""
    table = read_scores(storage, file)
    if table is None:
        raise OutputError(
            f"{storage.path(file_table('scores', file))} is missing. Copy the dataset again."
        )
    return table


def read_scores(storage: Storage, file: int) -> pa.Table | None:
    """The scores of a source file of a finished dataset; None if it has none."""
    name = file_table("scores", file)
    content = storage.read_if_there(name)
    return None if content is None else from_bytes(content, storage.path(name))
