"""The types of columns of the sources, found before an export begins."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.sources.finding import as_it_is
from fineshards.sources.reading import column_types, discover_blocks, read_block

# Footers that are read at once: of sources in stores, each is a request or two.
_THREADS = 16


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """The types that columns are written with. are_json: whether the values are JSON texts."""

    schema: pa.Schema
    are_json: bool = False


def settings_with(settings: Settings, names: Sequence[str]) -> Settings:
    """The settings of a dataset, to read other columns of its sources."""
    return replace(settings, columns=replace(settings.columns, others=tuple(names)))


def types_in_sources(manifest: Manifest, names: Sequence[str]) -> ColumnTypes:
    """The types of columns that hold those of all sources.

    Raises InputError for a source that has been touched or lacks a column, for types that have no
    common one, and for a field of JSON Lines that no row has.
    """
    settings = settings_with(manifest.settings, names)

    def of_file(file: SourceFile) -> pa.Schema:
        refuse_touched(file)
        return column_types(file, settings.columns)

    with ThreadPoolExecutor(_THREADS) as pool:
        (schema, *others) = pool.map(of_file, manifest.files)
    first = manifest.files[0]
    are_json = first.format == "jsonl"
    for file, other in zip(manifest.files[1:], others, strict=True):
        try:
            if (file.format == "jsonl") != are_json:
                raise pa.ArrowTypeError("one is JSON Lines, the other is not")
            schema = pa.unify_schemas([schema, other], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"{file.path}: its columns have other types than those of {first.path} ({error}). "
                "Leave these columns out."
            ) from error
    if are_json:
        _refuse_unknown(manifest, settings)
    return ColumnTypes(schema, are_json)


def refuse_touched(file: SourceFile) -> None:
    """Raises InputError for a file that may have other rows than were built from."""
    if as_it_is(file) != file:
        raise InputError(
            f"{file.path} was changed, copied or touched since the dataset was built, so its rows "
            "may be others. Restore the file with its time, or leave --columns out."
        )


def _refuse_unknown(manifest: Manifest, settings: Settings) -> None:
    """Raises InputError for a field that no row has: it would be a column of nulls."""
    missing = set(settings.columns.others)
    for file in manifest.files:
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
