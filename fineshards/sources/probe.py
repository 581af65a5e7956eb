"""A probe: small copies of places all over an input, from which the whole can be estimated.

Sizes are in the measure of `Block.bytes`: the text column of Parquet as it was before compression,
the file itself of JSON Lines.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

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
# Text per part of JSON Lines, and where a row group is cut. One of FineWeb has about 3 MB.
_PART_BYTES, _GROUP_BYTES = 4 << 20, 16 << 20
_GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a probe, copied from `bytes` of source file `file`, which is in `group`.

    place: parts that were copied from one place of the input have the same number.
    """

    path: str
    file: int
    group: str
    place: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What was copied: each part stands for its group, a source file or all files of a kind.

    totals: bytes of the input by group. largest: bytes of the largest piece of work that cannot be
    divided. seconds: time that copying took.
    """

    parts: list[Part]
    totals: dict[str, int]
    largest: int
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
    read_at: set[tuple[int, int]] = set()  # file and place
    for kind, members in kinds.items():
        share = totals[kind] / max(sum(totals.values()), 1)
        left, until = size * share, time.monotonic() + seconds * share
        seen = [file for file in members if file.index in blocks]
        for file, place, content, taken in _contents(seen, blocks, columns, left):
            if not len(content):
                continue
            path = os.path.join(folder, f"{len(parts):06d}.{kind}")
            _write(path, content, file.compression)
            parts.append(Part(path, file.index, kind, place, taken))
            read_at.add((file.index, place))
            left -= taken
            if left <= 0 or time.monotonic() > until:
                break
    took = time.monotonic() - began
    # Files often differ more than the places in a file do.
    places = Counter(index for index, _ in read_at)
    if all(places[file.index] > 1 for file in files):
        parts = [replace(part, group=str(part.file)) for part in parts]
        totals = {str(index): found for index, found in sizes.items()}
    largest = max(block.bytes for found in blocks.values() for block in found)
    return Probe(parts, totals, largest, took)


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
    files: Sequence[SourceFile], blocks: dict[int, list[Block]], columns: Columns, size: float
) -> Iterator[tuple[SourceFile, int, pa.Table | bytes, int]]:
    """Yields each part's file, place, content, and how many bytes of the file that is."""
    places = [(file, block, 0) for file in files for block in blocks[file.index]]
    if files[0].format == "jsonl" and files[0].compression == "none":
        places = [(f, b, start) for f, b, _ in places for start in range(0, f.size, _PART_BYTES)]
    places = [places[number] for number in spread(len(places))]
    limit = float(_PART_BYTES)
    if files[0].compression != "none":
        places = places[:_HEADS]
        limit = size / len(places)
    for place, (file, block, start) in enumerate(places):
        if file.format == "parquet":
            yield file, place, *_copy_group(file, block, columns)
        else:
            for content, taken in _copy_lines(file, start, limit):
                yield file, place, content, taken


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
        if size >= _GROUP_BYTES:
            return pa.concat_tables(tables), min(size, block.bytes)
    return pa.concat_tables(tables), block.bytes


def _copy_lines(file: SourceFile, start: int, limit: float) -> Iterator[tuple[bytes, int]]:
    """The lines that begin in the part at `start`; of a compressed file the first `limit` bytes."""
    rest, taken = b"", 0
    try:
        with explain_failures(file), open_file(file, _PART_BYTES) as opened:
            if file.compression == "none":
                opened.seek(start)
                text = opened.read(_PART_BYTES) + opened.readline()
                first = text.find(b"\n") + 1 if start else 0
                yield text[first:], len(text) - first
                return
            stream = decompress(file.compression, opened)
            while taken < limit and (text := stream.read(_PART_BYTES)):
                is_last, text = len(text) < _PART_BYTES, rest + text
                end = len(text) if is_last else text.rfind(b"\n") + 1
                rest, at = text[end:], opened.tell()
                if end:
                    yield text[:end], at - taken
                    taken = at
    except (EOFError, zlib.error) as error:
        raise InputError(
            f"{file.path} cannot be read: {error}. The file is damaged; download it again."
        ) from error


def _write(path: str, content: pa.Table | bytes, compression: str) -> None:
    """Writes a part, compressed as its source is, so that reading it costs the same."""
    if isinstance(content, pa.Table):
        pq.write_table(content, path, compression="zstd", row_group_size=max(len(content), 1))
        return
    if compression != "none":
        content = pa.Codec(compression, compression_level=1).compress(content, asbytes=True)
    with open(path, "wb") as out:
        out.write(content)
