"""Indexes: the keys of documents that others have, which `seen_in` looks documents up in."""

from __future__ import annotations

import numpy as np

from fineshards.curation.batch import Batch
from fineshards.curation.step import Keyed, KeyedSpans
from fineshards.errors import InputError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.recipe_record import RecipeRecord
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns, Settings
from fineshards.shards.record import replace
from fineshards.shards.tables.marks import (
    Records,
    external_positions,
    key_dtype,
    key_records,
    row_of,
)
from fineshards.sources.reading import discover_blocks, read_block
from fineshards.sources.rows import Rows
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.storage.open import open_storage
from fineshards.worker.kept_rows import batch_of


def key_type(keyed: Keyed) -> np.dtype[np.void]:
    """The type of the records of a step's keys."""
    return key_dtype(keyed.key_bits, isinstance(keyed, KeyedSpans))


def index_records(keyed: Keyed, file: SourceFile, columns: Columns, block_bytes: int) -> Records:
    """The keys of an index, a source file or a file of another dataset's keys, sorted.

    Raises InputError if the file has changed since the job was launched.
    """
    # Documents of an index get no scores, so its files may have any column.
    columns = replace(columns, scores=())
    if file.format == "keys":
        records = _kept_keys(file, keyed)
    else:
        parts = [
            _records(keyed, batch_of(_all_readable(rows, file).with_text(), file))
            for block in discover_blocks(file, columns, block_bytes)
            for rows in read_block(file, columns, block)
        ]
        records = np.concatenate([np.empty(0, key_type(keyed)), *parts])
    return key_records(records["key"], records["position"])


def index_of(recipe: RecipeRecord, step: int, number: int) -> SourceFile | None:
    """An index of a step, by its number; None if it has no such index."""
    found = (file for of_step, file in recipe.indexes if (of_step, file.index) == (step, number))
    return next(found, None)


def texts_of(index: SourceFile, settings: Settings) -> tuple[SourceFile, Settings]:
    """The source file with the texts of an index, and the settings to read it with.

    settings: of the job that has the index. Raises FineshardsError if it is that of a dataset which
    is not there.
    """
    if index.format != "keys":
        return index, settings
    folder, _, name = index.path.rpartition("/metadata/keys/")
    manifest = Manifest.load_finished(open_storage(folder))
    return manifest.files[int(name.partition("-")[0])], manifest.settings


def _kept_keys(file: SourceFile, keyed: Keyed) -> Records:
    """The keys that another dataset has kept of one of its files."""
    folder, _, name = file.path.rpartition("/metadata/")
    content = open_storage(folder).read(f"metadata/{name}")
    if f"crc32c:{checksum_to_base64(crc32c(content))}" != file.identity:
        raise InputError(
            f"{file.path} is damaged, or has changed since the job was launched. See what "
            f"fineshards verify {folder} says; if that dataset was built again, start over with "
            "--overwrite."
        )
    records = np.frombuffer(content, key_type(keyed)).copy()
    records["position"] = external_positions(file.index, row_of(records["position"]))
    return records


def _all_readable(rows: Rows, file: SourceFile) -> Rows:
    """Rows; raises InputError if one cannot be read, whose duplicates would be kept."""
    for bad in rows.bad:
        raise InputError(
            f"{file.path}, {bad.place}row {bad.row}: {bad.reason}. Documents are looked up in this "
            "file (seen_in), and --max_bad_rows does not count its rows. Fix the row."
        )
    return rows


def _records(keyed: Keyed, batch: Batch) -> Records:
    """The keys of documents of an index."""
    keys = keyed.keys(batch)
    rows = batch.rows[keys.owners]
    return key_records(keys.keys, external_positions(batch.file, rows))
