"""A probe: small copies of places all over an input, from which the whole can be estimated.

Sizes are in the measure of `Block.bytes`: the text column of Parquet as it was before compression,
the file itself of JSON Lines.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fineshards.errors import InputError
from fineshards.shards.job import Columns
from fineshards.shards.records import Block, SourceFile
from fineshards.sources.files import open_file
from fineshards.sources.jsonl import decompress
from fineshards.sources.reading import discover_blocks, explain_failures, read_block

# Files of each kind that are looked at, by so many threads. Compressed JSON Lines can be read from
# the beginning only: so many files are.
_FILES, _THREADS, _HEADS = 128, 16, 32
# Text of a part: as a block of a build, because each block takes some milliseconds of its own. And
# of JSON Lines at one place. A row group of FineWeb has about 3 MB.
_PART_BYTES, _PLACE_BYTES = 16 << 20, 4 << 20
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a probe, copied from `bytes` of the input's files of a kind."""

    path: str
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What was copied. A kind is a format and compression.

    totals: bytes of the input by kind. largest: bytes of the largest piece of work that cannot be
    divided. even: whether the parts are each from all over the input. seconds: of copying.
    """

    parts: list[Part]
    totals: dict[str, int]
    largest: int
    even: bool
    seconds: float


def spread(count: int) -> list[int]:
    """The numbers below `count`, in an order in which every prefix is spread evenly over them."""
    return sorted(range(count), key=lambda number: number * _GOLDEN_RATIO % 1)


def take_probe(
    files: Sequence[SourceFile], columns: Columns, folder: str, size: float, seconds: float
) -> Probe:
    """Copies about `size` bytes of the input, spread over all of it, into files in `folder`.

    Copies less when `seconds` are over. Raises InputError for a file that cannot be used.
    """
    kinds: dict[str, list[SourceFile]] = {}
    for file in files:
        kinds.setdefault(_kind(file), []).append(file)
    blocks: dict[int, list[Block]] = {}
    for members in kinds.values():
        blocks |= _look(members, columns)
    sizes = {index: sum(block.bytes for block in found) for index, found in blocks.items()}
    totals = {kind: _total(members, sizes) for kind, members in kinds.items()}
    parts: list[Part] = []
    began = time.monotonic()
    for kind, members in kinds.items():
        share = totals[kind] / max(sum(totals.values()), 1)
        left, until = size * share, time.monotonic() + seconds * share
        seen = [file for file in members if file.index in blocks]
        contents: list[pa.Table | bytes] = []
        copied = 0
        for content, taken in _contents(seen, blocks, columns, left):
            contents.append(content)
            copied += taken
            left -= taken
            is_last = left <= 0 or time.monotonic() > until
            if is_last or sum(map(_length, contents)) >= _PART_BYTES:
                parts.append(_write(contents, folder, len(parts), kind, copied))
                contents, copied = [], 0
            if is_last:
                break
        if contents:
            parts.append(_write(contents, folder, len(parts), kind, copied))
    took = time.monotonic() - began
    largest = max(block.bytes for found in blocks.values() for block in found)
    even = not any(file.format == "jsonl" and file.compression != "none" for file in files)
    return Probe(parts, totals, largest, even, took)


def _look(files: Sequence[SourceFile], columns: Columns) -> dict[int, list[Block]]:
    """The row groups, or the one block, of some of the files, by the index of the file."""
    chosen = [files[number] for number in spread(len(files))[:_FILES]]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda file: discover_blocks(file, columns, 1), chosen)
        return {file.index: blocks for file, blocks in zip(chosen, found, strict=True)}


def _total(files: Sequence[SourceFile], sizes: Mapping[int, int]) -> int:
    """The bytes of all files of a kind, by the sizes of some and what all have on disk."""
    seen = [file for file in files if file.index in sizes]
    on_disk = max(sum(file.size for file in seen), 1)
    return sum(sizes[file.index] for file in seen) * sum(file.size for file in files) // on_disk


def _kind(file: SourceFile) -> str:
    """The format and compression of a file, as the end of a file's name."""
    return file.format + {"none": "", "gzip": ".gz", "zstd": ".zst"}[file.compression]


def _contents(
    files: Sequence[SourceFile], blocks: Mapping[int, list[Block]], columns: Columns, size: float
) -> Iterator[tuple[pa.Table | bytes, int]]:
    """Yields contents from places in files of one kind, and how many bytes of a file each is."""
    places = [(file, block, 0) for file in files for block in blocks[file.index]]
    if files[0].format == "jsonl" and files[0].compression == "none":
        places = [(f, b, start) for f, b, _ in places for start in range(0, f.size, _PLACE_BYTES)]
    places = [places[number] for number in spread(len(places))]
    if files[0].compression != "none":
        places = places[:_HEADS]
    for file, block, start in places:
        if file.format == "parquet":
            yield _copy_group(file, block, columns)
        else:
            yield from _copy_lines(file, start, size / len(places))


def _copy_group(file: SourceFile, block: Block, columns: Columns) -> tuple[pa.Table, int]:
    """The rows of a row group, or the first of a huge one, without those that cannot be read."""
    tables, size = [], 0
    for rows in read_block(file, columns, block):
        found = {**rows.labels, columns.id: rows.ids, columns.text: rows.texts}
        if columns.split is not None:
            found.setdefault(columns.split, rows.split)
        table = pa.table(found)
        tables.append(table)
        size += 4 * len(table) + (pc.sum(pc.binary_length(rows.texts)).as_py() or 0)
        if size >= _PART_BYTES:
            return pa.concat_tables(tables), min(size, block.bytes)
    return pa.concat_tables(tables), block.bytes


def _copy_lines(file: SourceFile, start: int, limit: float) -> Iterator[tuple[bytes, int]]:
    """The lines that begin in a place; of a compressed file those in its first `limit` bytes."""
    rest, taken = b"", 0
    try:
        with explain_failures(file), open_file(file, _PLACE_BYTES) as opened:
            if file.compression == "none":
                opened.seek(start)
                text = opened.read(_PLACE_BYTES) + opened.readline()
                first = text.find(b"\n") + 1 if start else 0
                yield text[first:], len(text) - first
                return
            stream = decompress(file.compression, opened)
            while taken < limit and (text := stream.read(_PLACE_BYTES)):
                is_last, text = len(text) < _PLACE_BYTES, rest + text
                end = len(text) if is_last else text.rfind(b"\n") + 1
                rest, at = text[end:], opened.tell()
                if end:
                    yield text[:end], at - taken
                    taken = at
    except (EOFError, zlib.error) as error:
        raise InputError(
            f"{file.path} cannot be read: {error}. The file is damaged; download it again."
        ) from error


def _length(content: pa.Table | bytes) -> int:
    return len(content) if isinstance(content, bytes) else int(content.nbytes)


def _write(
    contents: list[pa.Table | bytes], folder: str, number: int, kind: str, copied: int
) -> Part:
    """Writes a part, compressed as its sources are, so that reading it costs the same."""
    path = os.path.join(folder, f"{number:06d}.{kind}")
    if kind == "parquet":
        # Files may lack ids or labels that others have.
        table = pa.concat_tables(contents, promote_options="default")
        pq.write_table(table, path, compression="zstd")
        return Part(path, kind, copied)
    text = b"".join(each if each.endswith(b"\n") else each + b"\n" for each in contents)
    compression = {"jsonl.gz": "gzip", "jsonl.zst": "zstd"}.get(kind)
    if compression:
        text = pa.Codec(compression, compression_level=1).compress(text, asbytes=True)
    with open(path, "wb") as out:
        out.write(text)
    return Part(path, kind, copied)
