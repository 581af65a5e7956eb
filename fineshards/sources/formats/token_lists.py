"""Documents that are lists of token ids, in a column of Parquet or Arrow: `input_ids`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.errors import InputError
from fineshards.shards.job.import_record import Imported
from fineshards.shards.job.records import SourceFile
from fineshards.sources.formats.token_rows import rows_of_tokens
from fineshards.sources.rows import Rows

COLUMN = "input_ids"


def check_lists(file: SourceFile, name: str, kind: pa.DataType) -> None:
    """Raises InputError unless a column has lists of integers."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_integer(kind.value_type):
        raise InputError(
            f"{file.path}: column {name!r} has type {kind}, expected lists of integers, one list "
            "per document. Give files of tokens."
        )


def raw_lists(lists: pa.Array, numbers: npt.NDArray[np.int64]) -> Rows:
    """Rows whose texts are still lists; `taken` makes of them what an import reads."""
    none = pa.nulls(len(lists), pa.string())
    return Rows(numbers, lists, none, none, {})


def taken(file: SourceFile, imported: Imported, rows: Rows) -> Rows:
    """Rows of lists as rows of tokens; raises as `rows_of_tokens` does, and for a null."""
    lists = rows.texts
    if not len(lists):
        return rows_of_tokens(file, imported, np.empty(0, np.uint32), np.zeros(1, np.int64), 0)
    first = int(rows.numbers[0])
    values = lists.flatten()  # without those of other slices
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    borders = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    nulls = lists.is_null().to_numpy(zero_copy_only=False)
    if values.null_count:
        place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        nulls[int(np.searchsorted(borders, place, side="right")) - 1] = True
    if nulls.any():
        raise InputError(
            f"{file.path}, document {first + int(np.argmax(nulls))}: is null, or one of its tokens "
            "is, expected token ids. Leave such rows out."
        )
    return rows_of_tokens(file, imported, values.to_numpy(), borders, first)
