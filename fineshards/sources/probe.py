"""A survey of how much text an input has, and a probe: a small copy of a share of it.

A probe is spread over the input and keeps its formats, compressions and row groups. So a build of
the probe costs the same per byte as a build of the input.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineshards.errors import InputError, OutputError
from fineshards.shards.job import Columns
from fineshards.shards.records import BadRow, Block, SourceFile
from fineshards.shards.rejected import Rejected
from fineshards.sources.files import COMPRESSIONS, open_file
from fineshards.sources.footers import column_chunks, open_source
from fineshards.sources.jsonl import lines, parse_row
from fineshards.sources.reading import discover_blocks, explain_failures, read_block
from fineshards.sources.rows import Rows

# Text per parquet file of a probe, measured as `Block.bytes`, unless the input's files have less.
# It is several blocks of the largest size, so that few blocks end early at the end of a file.
PART_BYTES = 256 << 20
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Survey:
    """How much text an input has, from the metadata of some or all files.

    seen: blocks of each inspected file by file index, one block per row group.
    seconds_per_file: mean time to inspect a file. Sizes are measured as `Block.bytes`.
    """

    files: tuple[SourceFile, ...]
    seen: Mapping[int, list[Block]]
    seconds_per_file: float

    @property
    def exact(self) -> bool:
        """Whether all files were inspected."""
        return len(self.seen) == len(self.files)

    def total(self, format_name: str) -> int:
        """Bytes of all files of a format. Files not inspected are estimated from their size."""
        files = [file for file in self.files if file.format == format_name]
        seen = [file for file in files if file.index in self.seen]
        known = sum(block.bytes for file in seen for block in self.seen[file.index])
        on_disk = sum(file.size for file in files)
        seen_on_disk = sum(file.size for file in seen)
        if on_disk == seen_on_disk:
            return known
        return known * on_disk // max(seen_on_disk, 1)

    def blocks(self, block_bytes: int) -> int:
        """Blocks of the whole input at a block size; an estimate unless `exact`."""
        known = sum(_count_blocks(blocks, block_bytes) for blocks in self.seen.values())
        return known * len(self.files) // max(len(self.seen), 1)


def _count_blocks(groups: Sequence[Block], block_bytes: int) -> int:
    """The number of blocks that discovery makes of row groups."""
    count, size = 0, block_bytes
    for group in groups:
        if size >= block_bytes:
            count, size = count + 1, 0
        size += group.bytes
    return count


def spread(count: int) -> list[int]:
    """The numbers below `count`, in an order in which every prefix is spread evenly over them."""
    return sorted(range(count), key=lambda number: number * _GOLDEN_RATIO % 1)


def survey(files: Sequence[SourceFile], columns: Columns, seconds: float) -> Survey:
    """Inspects files until none is left, or until time is up and each format was seen.

    Raises InputError for a file that cannot be used.
    """
    began = time.monotonic()
    missing = {file.format for file in files}
    seen = {}
    for number in spread(len(files)):
        time_is_up = time.monotonic() - began > seconds
        if time_is_up and not missing:
            break
        file = files[number]
        if not time_is_up or file.format in missing:
            seen[file.index] = discover_blocks(file, columns, 1)
            missing.discard(file.format)
    return Survey(tuple(files), seen, (time.monotonic() - began) / max(len(seen), 1))


@dataclass(frozen=True, slots=True)
class ProbePart:
    """A file of a probe. bytes: size of the input that it was copied from, as `Block.bytes`."""

    path: str
    format: str
    bytes: int


@dataclass
class Probe:
    """The files that were copied.

    sources: indices of the input files that were copied from. seconds: time that copying took.
    """

    parts: list[ProbePart] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)
    documents: int = 0
    seconds: float = 0.0

    @property
    def files(self) -> int:
        """The number of input files that were copied from."""
        return len(self.sources)

    @property
    def bytes(self) -> int:
        """The size of the copied input, measured as `Block.bytes`."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """How much to copy.

    size: bytes to copy, measured as `Block.bytes`. group_bytes: bytes after which a row group is
    cut, so that a huge one does not fill the probe. line_files: maximum number of JSON lines files.
    seconds: time after which copying stops; something is copied in any case.
    """

    size: int
    group_bytes: int
    line_files: int
    seconds: float
    max_bad_rows: int


def copy_probe(survey: Survey, columns: Columns, folder: str, limits: ProbeLimits) -> Probe:
    """Copies a share of the surveyed input into new files in `folder`.

    Skips rows that cannot be encoded. Raises InputError if a block has more than `max_bad_rows` of
    them, as a build does, or if no text was found.
    """
    began = time.monotonic()
    probe = Probe()
    total = max(sum(survey.total(name) for name in ("parquet", "jsonl")), 1)
    formats = {file.format for file in survey.files}
    for name, copy in (("parquet", _copy_parquet), ("jsonl", _copy_lines)):
        if name in formats:
            share = survey.total(name) / total
            deadline = time.monotonic() + limits.seconds * share
            size = round(limits.size * share)
            try:
                copy(probe, survey, columns, folder, limits, size, deadline)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise OutputError(
                    f"{folder} has no space left for a probe of the input. Free some, or choose "
                    "another disk."
                ) from error
    probe.seconds = time.monotonic() - began
    if probe.documents == 0:
        raise InputError(
            f"found no text in column {columns.text!r} in the rows read from {probe.files:,} of "
            f"{len(survey.files):,} files. Check --text_column and the input."
        )
    return probe


def _copy_parquet(
    probe: Probe,
    survey: Survey,
    columns: Columns,
    folder: str,
    limits: ProbeLimits,
    size: int,
    deadline: float,
) -> None:
    files = {file.index: file for file in survey.files}
    groups = [
        block
        for index, blocks in survey.seen.items()
        if files[index].format == "parquet"
        for block in blocks
    ]
    if not groups:
        return
    files_seen = {block.file for block in groups}
    mean_bytes = sum(block.bytes for block in groups) // len(files_seen)
    part_bytes = min(PART_BYTES, max(mean_bytes, 1))
    compression = _compression(files[groups[0].file], columns)
    writer: pq.ParquetWriter | None = None
    path, written, left = "", 0, size
    for number in spread(len(groups)):
        block = groups[number]
        limit = min(limits.group_bytes, left)
        table, read = _read_group(files[block.file], columns, block, limit, limits.max_bad_rows)
        if writer is None:
            path = os.path.join(folder, f"part-{len(probe.parts):05d}.parquet")
            writer = pq.ParquetWriter(path, table.schema, compression=compression)
        # Files may lack ids or labels that others have.
        writer.write_table(_with_schema(table, writer.schema), row_group_size=max(len(table), 1))
        probe.sources.add(block.file)
        probe.documents += len(table) - table.column(columns.text).null_count
        written += read
        left -= read
        done = left <= 0 or time.monotonic() > deadline
        if done or written >= part_bytes:
            writer.close()
            probe.parts.append(ProbePart(path, "parquet", written))
            writer, written = None, 0
        if done:
            break
    if writer is not None:
        writer.close()
        probe.parts.append(ProbePart(path, "parquet", written))


def _read_group(
    file: SourceFile, columns: Columns, block: Block, limit: int, max_bad_rows: int
) -> tuple[pa.Table, int]:
    """The first rows of a row group, up to about `limit` bytes, and their size in bytes."""
    tables: list[pa.Table] = []
    rejected = Rejected(file, max_bad_rows)
    size = 0
    whole = True
    for rows in read_block(file, columns, block):
        rejected.add(rows.bad)
        table = _table(rows, columns)
        lengths = pc.binary_length(rows.texts).fill_null(0).to_numpy(zero_copy_only=False) + 4
        ends = size + np.cumsum(lengths)
        count = int(np.searchsorted(ends, limit)) + 1
        if count < len(table):
            tables.append(table.slice(0, count))
            size, whole = int(ends[count - 1]), False
            break
        tables.append(table)
        size = int(ends[-1]) if len(ends) else size
    return pa.concat_tables(tables), block.bytes if whole else min(size, block.bytes)


def _table(rows: Rows, columns: Columns) -> pa.Table:
    found = {**rows.labels, columns.id: rows.ids, columns.text: rows.texts}
    return pa.table(found)


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table(
        [
            table.column(item.name)
            if item.name in table.column_names
            else pa.nulls(len(table), item.type)
            for item in schema
        ],
        schema=schema,
    )


def _compression(file: SourceFile, columns: Columns) -> str:
    """The compression of a parquet file's text, so that reading the probe costs the same."""
    with explain_failures(file), open_file(file) as opened:
        footer = open_source(file, opened).metadata
    for chunk in column_chunks(file, footer, columns.text):
        if chunk is not None:
            name: str = chunk.compression
            return "none" if name == "UNCOMPRESSED" else name.lower()
    return "snappy"


def _copy_lines(
    probe: Probe,
    survey: Survey,
    columns: Columns,
    folder: str,
    limits: ProbeLimits,
    size: int,
    deadline: float,
) -> None:
    files = [file for file in survey.files if file.format == "jsonl" and file.size]
    chosen = [files[number] for number in spread(len(files))[: limits.line_files]]
    extensions = {name: extension for extension, name in COMPRESSIONS.items()}
    for file in chosen:
        extension = extensions.get(file.compression, "")
        path = os.path.join(folder, f"part-{len(probe.parts):05d}.jsonl{extension}")
        limit = size // len(chosen)
        with explain_failures(file):
            documents, read = _copy_head(file, columns, path, limit, limits.max_bad_rows)
        probe.sources.add(file.index)
        probe.documents += documents
        probe.parts.append(ProbePart(path, "jsonl", read))
        if time.monotonic() > deadline:
            break


def _copy_head(
    file: SourceFile, columns: Columns, path: str, limit: int, max_bad_rows: int
) -> tuple[int, int]:
    """Copies lines until `limit` bytes of the file are read; returns documents and bytes read."""
    rejected = Rejected(file, max_bad_rows)
    documents = row = at = 0
    with open_file(file) as opened, _line_writer(path, file.compression) as out:
        for number, line in lines(file, opened):
            try:
                documents += parse_row(line, columns)[columns.text] is not None
                out.write(line if line.endswith(b"\n") else line + b"\n")
            except ValueError as error:
                rejected.add([BadRow(row, f"line {number}, ", str(error))])
            row += 1
            # A decompressor reads ahead of its output, so its position is slightly too large.
            at = at + len(line) if file.compression == "none" else opened.tell()
            if at >= limit:
                return documents, min(at, file.size)
    return documents, file.size


def _line_writer(path: str, compression: str) -> Any:
    if compression == "gzip":
        # Strong compression is slow and hardly changes the cost of decompression.
        return gzip.open(path, "wb", compresslevel=1)
    if compression == "zstd":
        return io.BufferedWriter(pa.CompressedOutputStream(path, "zstd"), 1 << 20)
    return open(path, "wb")
