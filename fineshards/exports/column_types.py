"""The types of columns of the sources, found before an export begins."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Settings
from fineshards.shards.record import replace
from fineshards.sources.finding import as_it_is
from fineshards.sources.formats.table import FORMATS
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


def types_in_sources(
    manifest: Manifest, names: Sequence[str], trust_input: bool = False
) -> ColumnTypes:
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
    return ColumnTypes(schema, are_json)


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
