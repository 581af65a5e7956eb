"""MosaicML's MDS (streaming/base/format/mds/writer.py): a row per document, or per T tokens.

`SPLIT/shard.00000.mds` is little-endian: u32 rows, u32 offsets of the rows and of the end, a JSON
object that describes the columns, and the rows. `SPLIT/index.json` lists the files. The one column
has the encoding `ndarray:uint32:T`, or `ndarray:uint32` where rows are documents: then u32 bytes of
what follows, u8 4 + c, the number of tokens in 1, 2 or 4 bytes, for which c is 0, 1 or 2, and the
tokens.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from fineshards.errors import UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader, plan_by_documents, plan_by_rows
from fineshards.exports.record import PartRecord
from fineshards.exports.stream import Stream

# MDSWriter's default.
_FILE_BYTES = 1 << 26
# Offsets are u32.
_MOST_BYTES = (1 << 32) - 1
# Before the number of tokens of a row that has its own.
_HEAD_BYTES = 5
_WIDTHS = (1, 2, 4)


class Mds(ExportFormat):
    """Read by MosaicML's StreamingDataset, and so by llm-foundry and ModernBERT."""

    reading = 'StreamingDataset(local="FOLDER", split="train")'
    sides = ("begin", "end")
    tokens_per_file = None
    rows = True
    token_column = "tokens"

    def plan(self, stream: Stream, settings: ExportSettings) -> list[Part]:
        length = settings.sequence_length
        if length is not None:
            return plan_by_rows(stream, length, _rows_per_file(length, settings), settings.eot)
        size = settings.tokens_per_file or _FILE_BYTES // settings.token_dtype.itemsize
        return plan_by_documents(stream, size, settings.eot)

    def check(self, settings: ExportSettings, parts: Sequence[Part]) -> None:
        length = settings.sequence_length
        if length is None:
            return
        rows = _rows_per_file(length, settings)
        _check_size(_head_bytes(rows, settings) + rows * length * settings.token_dtype.itemsize)
        for part in parts:
            if part.tokens < length:
                raise UsageError(
                    f"--sequence_length {length:,}: the {part.split} split has {part.tokens:,} "
                    "tokens, fewer than one row. Choose a smaller one, or another --split."
                )

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part, length = reader.part, settings.sequence_length
        left_out = 0 if length is None else part.tokens % length
        ends = reader.ends() if length is None else np.arange(length, part.tokens + 1, length)
        name = f"shard.{part.index:05d}.mds"
        sums: dict[str, Any] = {
            "sha1": hashlib.sha1(usedforsecurity=False),
            "xxh64": xxhash.xxh64(),
        }
        with target.create(f"{part.split}/{name}") as file:
            for chunk in _chunks(reader, np.diff(ends, prepend=0), settings):
                file.write(chunk)
                for digest in sums.values():
                    digest.update(chunk)
        hashes = {kind: digest.hexdigest() for kind, digest in sums.items()}
        raw = {"basename": name, "bytes": file.size, "hashes": hashes}
        facts = {"samples": len(ends), "raw_data": raw, "zip_data": None}
        return Written(len(ends) if length is None else None, left_out, facts)

    def finish(
        self, parts: Mapping[str, Sequence[PartRecord]], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        for split, records in parts.items():
            shards = [{**_columns(settings), **record.facts} for record in records]
            index = {"version": 2, "shards": shards}
            yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()


def _offsets(tokens: npt.NDArray[np.int64], settings: ExportSettings) -> npt.NDArray[np.int64]:
    """Where each row of a file begins, and where the last one ends. tokens: in each row."""
    sizes = tokens * settings.token_dtype.itemsize
    if settings.sequence_length is None:
        sizes += _HEAD_BYTES + _width(tokens)
    return _head_bytes(len(tokens), settings) + np.cumsum(np.append(0, sizes))


def _width(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bytes that the number of tokens of each row takes."""
    return np.select([tokens < 1 << 8, tokens < 1 << 16], _WIDTHS[:2], _WIDTHS[2])


def _check_size(size: int) -> None:
    """Raises UsageError for a file that is too large."""
    if size > _MOST_BYTES:
        raise UsageError(
            f"--to mds: a file would have {size:,} bytes, and its offsets hold at most "
            f"{_MOST_BYTES:,}. Give smaller --tokens_per_file or --sequence_length."
        )


def _chunks(
    reader: PartReader, tokens: npt.NDArray[np.int64], settings: ExportSettings
) -> Iterator[bytes]:
    """The content of a file. tokens: in each row."""
    offsets = _offsets(tokens, settings)
    _check_size(int(offsets[-1]))
    yield np.append(len(tokens), offsets).astype("<u4").tobytes()
    yield _config(settings)
    rest = reader.part.tokens - int(tokens.sum())  # fewer than a row
    for number, row in enumerate(reader.pieces(np.append(tokens, rest))):
        if number < len(tokens):
            yield row.tobytes() if settings.sequence_length else _array(row)


def _array(row: npt.NDArray[np.unsignedinteger]) -> bytes:
    """A row with the number of its tokens."""
    width = int(_width(np.array(len(row))))
    shape = bytes([4 + _WIDTHS.index(width)]) + len(row).to_bytes(width, "little")
    content = shape + row.tobytes()
    return len(content).to_bytes(4, "little") + content


def _head_bytes(rows: int, settings: ExportSettings) -> int:
    """The size of what is before the rows of a file."""
    return 4 + 4 * (rows + 1) + len(_config(settings))


def _rows_per_file(length: int, settings: ExportSettings) -> int:
    """As many as MDSWriter would put into a file, or those that the user asks for."""
    if settings.tokens_per_file is not None:
        return -(-settings.tokens_per_file // length)
    row = length * settings.token_dtype.itemsize
    return max((_FILE_BYTES - _head_bytes(0, settings)) // (row + 4), 1)


def _columns(settings: ExportSettings) -> dict[str, Any]:
    """The fields that MDSWriter records for every file."""
    length = settings.sequence_length
    shape = "" if length is None else f":{length}"
    own_size = length is None or settings.tokens_per_file
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["sha1", "xxh64"],
        "size_limit": None if own_size else _FILE_BYTES,
        "column_names": [settings.token_column],
        "column_encodings": [f"ndarray:{settings.dtype}{shape}"],
        "column_sizes": [None if length is None else length * settings.token_dtype.itemsize],
    }


def _config(settings: ExportSettings) -> bytes:
    return json.dumps(_columns(settings), sort_keys=True).encode()
