"""MosaicML's MDS (streaming/base/format/mds/writer.py): rows of tokens, one length for all.

`SPLIT/shard.00000.mds` is little-endian: u32 rows, u32 offsets of the rows and of the end, a JSON
object that describes the columns, and the rows. `SPLIT/index.json` lists the files. The column is
`tokens`, with the encoding `ndarray:uint32:T`, as llm-foundry reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from fineshards.errors import UsageError
from fineshards.exports.format import ExportSettings, Format, Target, Written
from fineshards.exports.parts import Part, PartReader, plan_by_rows
from fineshards.exports.record import PartRecord
from fineshards.exports.stream import Stream

# MDSWriter's default.
_FILE_BYTES = 1 << 26
# Offsets are u32.
_MOST_BYTES = (1 << 32) - 1


class Mds(Format):
    """Read by MosaicML's StreamingDataset, and so by llm-foundry."""

    name = "mds"
    reading = 'StreamingDataset(local="FOLDER", split="train")'
    sides = ("begin", "end")
    cuts = "tokens"
    tokens_per_file = None
    rows = "needed"

    def plan(self, stream: Stream, settings: ExportSettings) -> list[Part]:
        return plan_by_rows(stream, _length(settings), _rows_per_file(settings), settings.side)

    def check(self, settings: ExportSettings, parts: Sequence[Part]) -> None:
        length, rows = _length(settings), _rows_per_file(settings)
        if (size := _head_bytes(rows, settings) + rows * _row_bytes(settings)) > _MOST_BYTES:
            raise UsageError(
                f"--to mds: a file of {rows:,} rows of {length:,} tokens would have {size:,} "
                f"bytes, and its offsets hold at most {_MOST_BYTES:,}. Give smaller "
                "--tokens_per_file or --sequence_length."
            )
        for part in parts:
            if part.tokens < length:
                raise UsageError(
                    f"--sequence_length {length:,}: the {part.split} split has {part.tokens:,} "
                    "tokens, fewer than one row. Choose a smaller one, or another --split."
                )

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part, length = reader.part, _length(settings)
        count, left_out = divmod(part.tokens, length)
        first = _head_bytes(count, settings)
        offsets = first + np.arange(count + 1, dtype=np.int64) * _row_bytes(settings)
        sha1, xxh64 = hashlib.sha1(usedforsecurity=False), xxhash.xxh64()
        name = f"shard.{part.index:05d}.mds"
        with target.create(f"{part.split}/{name}") as file:

            def write(content: bytes) -> None:
                file.write(content)
                sha1.update(content)
                xxh64.update(content)

            write(np.array([count, *offsets], "<u4").tobytes())
            write(_config(settings))
            for rows in reader.rows(length):
                if rows.ndim == 2:
                    write(rows.tobytes())
        facts = {
            "basename": name,
            "bytes": file.bytes,
            "hashes": {"sha1": sha1.hexdigest(), "xxh64": xxh64.hexdigest()},
        }
        return Written(None, left_out, {"samples": count, "raw_data": facts})

    def finish(
        self, split: str, records: Sequence[PartRecord], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        shards = [{**_columns(settings), **record.facts, "zip_data": None} for record in records]
        index = {"version": 2, "shards": shards}
        yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()


def _length(settings: ExportSettings) -> int:
    assert settings.sequence_length is not None
    return settings.sequence_length


def _row_bytes(settings: ExportSettings) -> int:
    return _length(settings) * settings.token_dtype.itemsize


def _head_bytes(rows: int, settings: ExportSettings) -> int:
    """The size of what is before the rows of a file."""
    return 4 + 4 * (rows + 1) + len(_config(settings))


def _rows_per_file(settings: ExportSettings) -> int:
    """As many as MDSWriter would put into a file, or those that the user asks for."""
    if settings.tokens_per_file is not None:
        return -(-settings.tokens_per_file // _length(settings))
    return max((_FILE_BYTES - _head_bytes(0, settings)) // (_row_bytes(settings) + 4), 1)


def _columns(settings: ExportSettings) -> dict[str, Any]:
    """What MDSWriter says of every file."""
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["sha1", "xxh64"],
        "size_limit": None if settings.tokens_per_file else _FILE_BYTES,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{settings.dtype}:{_length(settings)}"],
        "column_sizes": [_row_bytes(settings)],
    }


def _config(settings: ExportSettings) -> bytes:
    return json.dumps(_columns(settings), sort_keys=True).encode()
