"""Groups of documents that are compared with each other: all, those of a file, or of a column.

A group is part of the keys of its documents. So equal keys mean the same group, and nothing that
compares keys knows of groups.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest, xxh3_128_digest

from fineshards.curation.batch import Batch
from fineshards.curation.column_values import compared_bytes, values_to_compare
from fineshards.curation.parameters import rule

COLUMN = "column:"


def names_column(value: object) -> bool:
    """Whether a value of a parameter is `column:NAME`."""
    return isinstance(value, str) and value.startswith(COLUMN) and value != COLUMN


Within = Annotated[
    str,
    rule('"all", "file" or "column:NAME"', lambda v: v in ("all", "file") or names_column(v)),
]


def columns_of(within: str) -> tuple[str, ...]:
    """The columns that groups are made by."""
    return (within.removeprefix(COLUMN),) if within.startswith(COLUMN) else ()


def of_group(
    keys: npt.NDArray[np.uint64], owners: npt.NDArray[np.int64], batch: Batch, within: str
) -> npt.NDArray[np.uint64]:
    """Keys that are equal only if they were and their documents are of one group.

    keys, owners: as of `Keys`. A key is hashed together with the XXH3-128 of the file's number in
    the input, or of the value of the column. Documents without a value are a group.
    """
    if within == "all":
        return keys
    if within == "file":
        values: list[bytes | None] = [str(batch.file).encode()] * len(batch)
    else:
        values = [compared_bytes(value) for value in values_to_compare(batch, *columns_of(within))]
    groups = [b"" if each is None else xxh3_128_digest(each) for each in values]
    digest = xxh3_128_digest if keys.ndim == 2 else xxh3_64_digest
    hashed = b"".join(
        digest(key.tobytes() + groups[owner])
        for key, owner in zip(keys.astype("<u8"), owners.tolist(), strict=True)
    )
    return np.frombuffer(hashed, ">u8").astype(np.uint64).reshape(keys.shape)
