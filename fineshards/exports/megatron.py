"""Megatron's `.bin` and `.idx` (megatron/core/datasets/indexed_dataset.py).

`NAME.bin` holds the tokens. `NAME.idx` is little-endian: `MMIDIDX\\0\\0`, u64 1 (version), u8 code
of the dtype, u64 sequences, u64 documents + 1, i32 lengths, i64 pointers into `.bin` in bytes, i64
document indices. Here a sequence is a document. There is no code for uint32; ids below 2^31 have
the same bytes in int32.

With `--link`, `.bin` is a link to a shard, and the pointers step over its header. Conversations
also have `NAME.loss_mask.bin` and `.idx`: a float32 per token, 1 where it is learned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.exports.format import (
    ExportSettings,
    Format,
    Target,
    Written,
    write_mask,
    write_tokens,
)
from fineshards.exports.parts import Part, PartReader, plan_by_shards
from fineshards.exports.stream import Stream
from fineshards.shards import npy

_MAGIC = b"MMIDIDX\x00\x00"
# Lengths are int32.
_LONGEST = (1 << 31) - 1
_CODES = {"uint32": 4, "float32": 7, "uint16": 8}


class Megatron(Format):
    """Also read by NeMo, Megatron-Bridge, MaxText and Energon."""

    name = "megatron"
    reading = "--data-path FOLDER/train_0000 --split 100,0,0"
    links = True
    most_ids = 1 << 31
    by_eot = False
    masks = True

    def plan(self, stream: Stream, settings: ExportSettings) -> list[Part]:
        if settings.link:
            return plan_by_shards(stream, settings.eot)
        return super().plan(stream, settings)

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part, dtype = reader.part, settings.token_dtype
        stem = f"{part.split}_{part.index:04d}"
        ends = reader.ends()
        lengths = np.diff(ends, prepend=0)
        first = 0
        if (longest := int(lengths.max(initial=0))) > _LONGEST:
            raise UsageError(
                f"a document of {stem} has {longest:,} tokens; Megatron's index holds at most "
                f"{_LONGEST:,}. Export to raw instead."
            )
        if settings.link:
            target.link(f"{stem}.bin", reader)
            first = npy.HEADER_BYTES + part.skip * dtype.itemsize
        else:
            with target.create(f"{stem}.bin") as file:
                write_tokens(reader, file)
        _write_index(f"{stem}.idx", ends, settings.dtype, first, target)
        if settings.masks:
            with target.create(f"{stem}.loss_mask.bin") as file:
                write_mask(reader, file, "<f4")
            _write_index(f"{stem}.loss_mask.idx", ends, "float32", 0, target)
        # Of links, pieces of documents are counted, which no one asks for.
        return Written(None if settings.link else len(ends))

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        said = []
        if settings.masks:
            said.append(
                "Megatron-LM's own datasets ignore train_0000.loss_mask, and so learn prompts too. "
                "ApertusSFTDataset of swiss-ai/Megatron-LM reads it."
            )
        if not settings.link:
            return said
        return [
            *said,
            "The .bin files are links to shards: tools/merge_datasets.py of Megatron ignores the "
            "pointers of .idx files and would shift every token. Export without --link for it.",
            "The last document of each file is cut where the shard ends, and has no EOT.",
        ]


def _write_index(
    name: str, ends: npt.NDArray[np.int64], dtype: str, first: int, target: Target
) -> None:
    """Writes an index. ends: of the documents, in tokens. first: the place of the first one."""
    lengths = np.diff(ends, prepend=0)
    target.write(
        name,
        _MAGIC + struct.pack("<QBQQ", 1, _CODES[dtype], len(ends), len(ends) + 1),
        lengths.astype("<i4"),
        (first + (ends - lengths) * np.dtype(dtype).itemsize).astype("<i8"),
        np.arange(len(ends) + 1, dtype="<i8"),
    )
