"""How many duplicates of each document were dropped.

A dropped document names the earlier one that it duplicates as its witness. If that was dropped for
a witness as well, this one is meant, and so on. So a duplicate counts for the document that stayed.
"""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.exports.source_columns import gathered
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.records import SourceFile
from fineshards.shards.tables.decisions import read_decisions

# exact: duplicates by equal keys. near: those that `minhash` found.
SCHEMA = pa.schema([pa.field(f"{kind}_copies", pa.int64(), False) for kind in ("exact", "near")])

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
        found = _places(file.index, rows)
        places = np.searchsorted(counts.documents, found)
        known = np.append(counts.documents, -1)[places] == found
        columns = [np.where(known, np.append(each, 0)[places], 0) for each in counts[1:]]
        return pa.table(columns, schema=SCHEMA)

    return gathered(dataset.manifest, sources, SCHEMA, of)


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
    kept = witnesses
    # Each round doubles the number of witnesses that are passed over.
    while len(dropped):
        places = np.searchsorted(dropped, kept).clip(max=len(dropped) - 1)
        again = dropped[places] == kept
        if not again.any():
            break
        kept = np.where(again, kept[places], kept)
    documents, owners = np.unique(kept, return_inverse=True)
    exact, alike = (np.bincount(owners[each], minlength=len(documents)) for each in (~near, near))
    return _Counts(documents, exact, alike)
