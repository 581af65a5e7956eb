"""Which decisions of a recipe are shown: some chosen by a hash, or those about one document."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineshards.errors import UsageError
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.curated_files import decisions_name
from fineshards.shards.tables.decisions import read_decisions
from fineshards.shards.tables.hash_sample import splitmix64

# Files of decisions that are read to choose from: reading all of a large dataset takes long.
_FILES = 64

# A row that a step has decided about: the step, the file and the row.
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ChosenDecision:
    """Decisions of one step about one document, as in its table; several if spans are cut."""

    file: int
    row: int
    step: int
    reason: str
    spans: tuple[int, ...]
    witness: tuple[int, int] | None
    similarity: float | None

    @property
    def place(self) -> Place:
        """The document's row."""
        return self.step, self.file, self.row


def place_of(dataset: Dataset, document: str) -> tuple[int, int]:
    """The number of the file and the row of `FILE:ROW`."""
    name, _, row = document.rpartition(":")
    if not name or not row.isdecimal():
        raise UsageError(f"--document {document}: with --dropped give FILE:ROW, such as 0:17.")
    files = dataset.manifest.files
    for file in files:
        if name in (file.name, file.path, str(file.index)):
            return file.index, int(row)
    ending = [file.index for file in files if file.path.endswith(f"/{name}")]
    if len(ending) == 1:
        return ending[0], int(row)
    raise UsageError(
        f"--document {document}: the input has {len(ending) or 'no'} files {name}. Give the whole "
        f"path, or the number of the file, from 0 to {len(files) - 1}."
    )


def choose(
    dataset: Dataset, reason: str | None, step: int | None, count: int
) -> list[tuple[int, int]]:
    """File and row of the documents with the smallest hashes, in order, among some files."""
    best: list[tuple[int, int, int]] = []
    for looked, file in enumerate(_by_hash(dataset)):
        if looked >= _FILES and len(best) == count:
            break
        table = _matching(read_decisions(dataset.storage, file).table, reason, step)
        rows = np.unique(table["row"].to_numpy())
        hashes = splitmix64(rows.astype(np.uint64) ^ np.uint64(_hash(file, 1)))
        order = np.argsort(hashes)[:count]
        best += [(int(hashes[n]), file, int(rows[n])) for n in order.tolist()]
        best = heapq.nsmallest(count, best)
    return sorted((file, row) for _, file, row in best)


def _by_hash(dataset: Dataset) -> list[int]:
    """The files that have decisions, in the order in which some are looked at."""
    names = {file.name for file in dataset.manifest.metadata}
    files = [file.index for file in dataset.manifest.files if decisions_name(file.index) in names]
    return sorted(files, key=lambda file: _hash(file, 0))


def _hash(file: int, salt: int) -> int:
    return int(splitmix64(splitmix64(np.array([file], np.uint64)) ^ np.uint64(salt))[0])


def _matching(table: pa.Table, reason: str | None, step: int | None) -> pa.Table:
    if reason is not None:
        table = table.filter(pc.equal(table["reason"], reason))
    return table if step is None else table.filter(pc.equal(table["step"], step))


def about_row(
    dataset: Dataset, file: int, row: int, reason: str | None, step: int | None
) -> Iterator[ChosenDecision]:
    """The decisions about one row, those of a step that cuts spans as one."""
    table = read_decisions(dataset.storage, file).table
    table = table.filter(pc.equal(table["row"], row))
    found: dict[tuple[int, bool], list[dict[str, Any]]] = defaultdict(list)
    for each in _matching(table, reason, step).to_pylist():
        found[each["step"], each["span"] is None].append(each)
    for (number, _), decisions in sorted(found.items()):
        first = decisions[0]
        witness = first["witness_file"], first["witness_row"]
        yield ChosenDecision(
            file=file,
            row=first["row"],
            step=number,
            reason=first["reason"],
            spans=tuple(each["span"] for each in decisions if each["span"] is not None),
            witness=None if witness[0] is None else witness,
            similarity=first["similarity"],
        )
