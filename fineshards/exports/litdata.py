"""litdata's chunks for its TokensLoader (litdata/streaming/writer.py and item_loader.py).

`SPLIT/chunk-0-0.bin` is little-endian: u32 items, u32 offsets of the items and of the end, and the
items; here the one item is all tokens of the chunk. `SPLIT/index.json` lists the chunks and has the
dtype. TokensLoader skips offsets unread, by the number of items that the index says.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from fineshards.errors import UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader, plan_by_rows
from fineshards.exports.record import PartRecord, digest_of
from fineshards.exports.stream import Stream

# Offsets are u32.
_MOST_BYTES = (1 << 32) - 1
_HEAD_BYTES = 4 * 3
_DATA_FORMATS = {"uint16": "no_header_numpy:5", "uint32": "no_header_numpy:6"}
# A sample is an array, not a dictionary of them.
_LEAF = json.dumps([1, {"type": None, "context": None, "children_spec": []}])


class Litdata(ExportFormat):
    """Read by litdata's StreamingDataset, and so by LitGPT."""

    reading = 'StreamingDataset("FOLDER/train", item_loader=TokensLoader(block_size=2048 + 1))'
    sides = ("begin", "end")
    cuts = "tokens"
    tokens_per_file = "shard"
    rows = True

    def plan(self, stream: Stream, settings: ExportSettings) -> list[Part]:
        length, size = settings.sequence_length or 1, settings.tokens_per_file
        assert size is not None
        return plan_by_rows(stream, length, -(-size // length), settings.eot)

    def check(self, settings: ExportSettings, parts: Sequence[Part]) -> None:
        largest = max(part.tokens for part in parts) * settings.token_dtype.itemsize + _HEAD_BYTES
        if largest > _MOST_BYTES:
            raise UsageError(
                f"--to litdata: a chunk would have {largest:,} bytes, and its offsets hold at most "
                f"{_MOST_BYTES:,}. Give smaller --tokens_per_file."
            )

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        name = f"chunk-0-{part.index}.bin"
        size = part.tokens * settings.token_dtype.itemsize
        head = np.array([1, _HEAD_BYTES, _HEAD_BYTES + size], "<u4")
        target.write(f"{part.split}/{name}", chain([head], reader.chunks()))
        chunk = {
            "chunk_bytes": _HEAD_BYTES + size,
            "chunk_size": 1,
            "dim": part.tokens,
            "filename": name,
        }
        return Written(None, 0, chunk)

    def finish(
        self, parts: Mapping[str, Sequence[PartRecord]], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        config = {
            "chunk_bytes": None,
            "chunk_size": 1,
            "compression": None,
            "compression_batch_size": None,
            "compression_level": None,
            "data_format": [_DATA_FORMATS[settings.dtype]],
            "data_spec": _LEAF,
            "encryption": None,
            "ipc_compression": None,
            "item_loader": "TokensLoader",
            "types": "json",
        }
        for split, records in parts.items():
            index = {
                "chunks": [record.facts for record in records],
                "config": config,
                # Names a folder of the reader's cache. A clock would give other bytes every time.
                "updated_at": digest_of(records),
            }
            yield f"{split}/index.json", json.dumps(index, sort_keys=True).encode()

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        if settings.sequence_length is None:
            return [
                "TokensLoader(block_size=B) leaves out the last tokens of each chunk, fewer than "
                "B. With --sequence_length B, chunks hold whole blocks, but for the last one."
            ]
        return []
