"""A sample of an input: a look at how much text there is, and a small copy of some of it.

What is copied is spread over the input and has its formats, compressions and row groups, so that a
build of the sample does per byte what a build of the input does.
"""

from __future__ import annotations

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

from fineshards.errors import InputError
from fineshards.shards.job import Columns
from fineshards.shards.records import BadRow, Block, SourceFile
from fineshards.sources.files import COMPRESSIONS, open_file
from fineshards.sources.jsonl import lines, parse_row
from fineshards.sources.reading import discover_blocks, explain_failures, read_block
from fineshards.sources.rows import Rows

# A sample's parquet files hold so much text, in the measure of `Block.bytes`, if the input's do:
# some blocks of the largest size, so that blocks do not end because files do.
PART_BYTES = 256 << 20
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Survey:
    """How much there is to read, from the metadata of some or all files.

    seen: by file index, the blocks of each file that was looked at, a row group each.
    seconds_per_file: what looking at one took. Sizes are in the measure of `Block.bytes`.
    """

    files: tuple[SourceFile, ...]
    seen: Mapping[int, list[Block]]
    seconds_per_file: float

    @property
    def exact(self) -> bool:
        """Whether all files were looked at."""
        return len(self.seen) == len(self.files)

    def total(self, format_name: str) -> int:
        """Bytes of all files of a format; of those not seen, as their size on disk lets expect."""
        files = [file for file in self.files if file.format == format_name]
        seen = [file for file in files if file.index in self.seen]
        known = sum(block.bytes for file in seen for block in self.seen[file.index])
        on_disk = sum(file.size for file in files)
        seen_on_disk = sum(file.size for file in seen)
        if on_disk == seen_on_disk:
            return known
        return known * on_disk // max(seen_on_disk, 1)

    def blocks(self, block_bytes: int) -> int:
        """Blocks of the whole input at a block size, about if not all files were looked at."""
        known = sum(_count_blocks(blocks, block_bytes) for blocks in self.seen.values())
        return known * len(self.files) // max(len(self.seen), 1)


def _count_blocks(groups: Sequence[Block], block_bytes: int) -> int:
    """What discovery makes of row groups: a block ends when it reaches `block_bytes`."""
    count, size = 0, block_bytes
    for group in groups:
        if size >= block_bytes:
            count, size = count + 1, 0
        size += group.bytes
    return count


def spread(count: int) -> list[int]:
    """The numbers below `count` in an order whose every beginning is spread evenly over them."""
    return sorted(range(count), key=lambda number: number * _GOLDEN_RATIO % 1)


def survey(files: Sequence[SourceFile], columns: Columns, seconds: float) -> Survey:
    """Looks at files until all are seen, or the time is over and each format was met.

    Raises InputError for a file that cannot be used.
    """
    began = time.monotonic()
    missing = {file.format for file in files}
    seen = {}
    for number in spread(len(files)):
        over = time.monotonic() - began > seconds
        if over and not missing:
            break
        file = files[number]
        if not over or file.format in missing:
            seen[file.index] = discover_blocks(file, columns, 1)
            missing.discard(file.format)
    return Survey(tuple(files), seen, (time.monotonic() - began) / max(len(seen), 1))


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a sample. bytes: how much of the input it stands for, as `Block.bytes` measures."""

    path: str
    format: str
    bytes: int


@dataclass
class Sample:
    """What was copied, from which files by index, and the seconds that it took."""

    parts: list[Part] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)
    documents: int = 0
    seconds: float = 0.0

    @property
    def files(self) -> int:
        """Of how many of the input's files something was copied."""
        return len(self.sources)

    @property
    def bytes(self) -> int:
        """In the measure of `Block.bytes`."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Wish:
    """How to sample.

    size: bytes to copy, in the measure of `Block.bytes`. piece: bytes after which a row group is
    cut, lest one that is huge be all of the sample. line_files: files of JSON lines to begin.
    seconds: after which the sample is what was copied until then, but something in any case.
    """

    size: int
    piece: int
    line_files: int
    seconds: float
    max_bad_rows: int


def copy_sample(survey: Survey, columns: Columns, folder: str, wish: Wish) -> Sample:
    """Copies some of what a survey saw into new files in `folder`.

    Rows that cannot be encoded are left out. Raises InputError if there are more than
    `max_bad_rows` of them in a block, as a build would, and if there is no text at all.
    """
    began = time.monotonic()
    sample = Sample()
    total = max(sum(survey.total(name) for name in ("parquet", "jsonl")), 1)
    formats = {file.format for file in survey.files}
    for name, copy in (("parquet", _copy_parquet), ("jsonl", _copy_lines)):
        if name in formats:
            share = survey.total(name) / total
            deadline = time.monotonic() + wish.seconds * share
            copy(sample, survey, columns, folder, wish, round(wish.size * share), deadline)
    sample.seconds = time.monotonic() - began
    if sample.documents == 0:
        raise InputError(
            f"no text in column {columns.text!r} in what was read of {len(survey.files):,} files. "
            "Check --text_column and the input."
        )
    return sample


def _copy_parquet(
    sample: Sample,
    survey: Survey,
    columns: Columns,
    folder: str,
    wish: Wish,
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
    seen = {block.file for block in groups}
    usual = sum(block.bytes for block in groups) // len(seen)
    part_bytes = min(PART_BYTES, max(usual, 1))
    compression = _compression(files[groups[0].file], columns)
    writer: pq.ParquetWriter | None = None
    path, written, left = "", 0, size
    for number in spread(len(groups)):
        block = groups[number]
        table, share = _read_group(files[block.file], columns, block, min(wish.piece, left), wish)
        if writer is None:
            path = os.path.join(folder, f"part-{len(sample.parts):05d}.parquet")
            writer = pq.ParquetWriter(path, table.schema, compression=compression)
        # Files may lack ids or labels that others have.
        writer.write_table(_like(table, writer.schema), row_group_size=max(len(table), 1))
        sample.sources.add(block.file)
        sample.documents += len(table) - table.column(columns.text).null_count
        written += share
        left -= share
        over = left <= 0 or time.monotonic() > deadline
        if over or written >= part_bytes:
            writer.close()
            sample.parts.append(Part(path, "parquet", written))
            writer, written = None, 0
        if over:
            break
    if writer is not None:
        writer.close()
        sample.parts.append(Part(path, "parquet", written))


def _read_group(
    file: SourceFile, columns: Columns, block: Block, limit: int, wish: Wish
) -> tuple[pa.Table, int]:
    """The leading rows of a row group, up to about `limit` bytes, and their bytes."""
    tables: list[pa.Table] = []
    bad = 0
    size = 0
    whole = True
    for rows in read_block(file, columns, block):
        bad += _check_bad(file, rows.bad, bad, wish.max_bad_rows)
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


def _like(table: pa.Table, schema: pa.Schema) -> pa.Table:
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
    """How a parquet file's text is compressed: reading it back should cost the same."""
    with explain_failures(file), open_file(file) as opened:
        metadata = pq.read_metadata(opened)
        for index in range(metadata.num_columns):
            if metadata.num_row_groups and metadata.schema.column(index).path == columns.text:
                name: str = metadata.row_group(0).column(index).compression
                return "none" if name == "UNCOMPRESSED" else name.lower()
    return "snappy"


def _copy_lines(
    sample: Sample,
    survey: Survey,
    columns: Columns,
    folder: str,
    wish: Wish,
    size: int,
    deadline: float,
) -> None:
    files = [file for file in survey.files if file.format == "jsonl" and file.size]
    chosen = [files[number] for number in spread(len(files))[: wish.line_files]]
    endings = {name: ending for ending, name in COMPRESSIONS.items()}
    for file in chosen:
        ending = endings.get(file.compression, "")
        path = os.path.join(folder, f"part-{len(sample.parts):05d}.jsonl{ending}")
        with explain_failures(file):
            documents, read = _copy_head(file, columns, path, size // len(chosen), wish)
        sample.sources.add(file.index)
        sample.documents += documents
        sample.parts.append(Part(path, "jsonl", read))
        if time.monotonic() > deadline:
            break


def _copy_head(
    file: SourceFile, columns: Columns, path: str, limit: int, wish: Wish
) -> tuple[int, int]:
    """Copies a file's first lines, until `limit` of its bytes are read; documents and bytes."""
    documents = bad = row = at = 0
    with open_file(file) as opened, _line_writer(path, file.compression) as out:
        for number, line in lines(file, opened):
            try:
                documents += parse_row(line, columns)[columns.text] is not None
                out.write(line if line.endswith(b"\n") else line + b"\n")
            except ValueError as error:
                reasons = [BadRow(row, f"line {number}, ", str(error))]
                bad += _check_bad(file, reasons, bad, wish.max_bad_rows)
            row += 1
            # Decompressors read ahead of what they give, so for them this is a little too much.
            at = at + len(line) if file.compression == "none" else opened.tell()
            if at >= limit:
                return documents, min(at, file.size)
    return documents, file.size


def _line_writer(path: str, compression: str) -> Any:
    if compression == "gzip":
        # Compressing well takes long and changes little for who decompresses.
        return gzip.open(path, "wb", compresslevel=1)
    if compression == "zstd":
        return io.BufferedWriter(pa.CompressedOutputStream(path, "zstd"), 1 << 20)
    return open(path, "wb")


def _check_bad(file: SourceFile, found: Sequence[BadRow], before: int, allowed: int) -> int:
    if before + len(found) > allowed:
        row = found[allowed - before]
        raise InputError(
            f"{file.path}, {row.place}row {row.row}: {row.reason}. Mend the row, or let such rows "
            "be set aside with a higher --max_bad_rows."
        )
    return len(found)
