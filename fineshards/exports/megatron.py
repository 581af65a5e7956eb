"""Megatron's `.bin` and `.idx` (megatron/core/datasets/indexed_dataset.py).

`NAME.bin` holds the tokens. `NAME.idx` is little-endian: `MMIDIDX\\0\\0`, u64 1 (version), u8 code
of the dtype, u64 sequences, u64 documents + 1, i32 lengths, i64 pointers into `.bin` in bytes, i64
document indices. Here a sequence is a document. There is no code for uint32; ids below 2^31 have
the same bytes in int32.

Conversations also have `NAME.loss_mask.bin` and `.idx`: a float32 per token, 1 where it is learned.
"""

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fineshards.errors import UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader

_MAGIC = b"MMIDIDX\x00\x00"
# Lengths are int32.
_LONGEST = (1 << 31) - 1
_CODES = {"uint32": 4, "float32": 7, "uint16": 8}


class Megatron(ExportFormat):
    """Also read by NeMo, Megatron-Bridge, MaxText and Energon."""

    reading = "--data-path FOLDER/train_0000 --split 100,0,0"
    most_ids = 1 << 31
    by_eot = False
    masks = True

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        stem, ends = f"{reader.part.split}_{reader.part.index:04d}", reader.ends()
        if (longest := int(np.diff(ends, prepend=0).max(initial=0))) > _LONGEST:
            raise UsageError(
                f"a document of {stem} has {longest:,} tokens; Megatron's index holds at most "
                f"{_LONGEST:,}. Export to raw instead."
            )
        target.write(f"{stem}.bin", reader.chunks())
        _write_index(f"{stem}.idx", ends, settings.dtype, target)
        if settings.masks:
            target.write(f"{stem}.loss_mask.bin", reader.masks("<f4"))
            _write_index(f"{stem}.loss_mask.idx", ends, "float32", target)
        return Written(len(ends))

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        if not settings.masks:
            return []
        return [
            "Megatron-LM's own datasets ignore train_0000.loss_mask, and so learn prompts too. "
            "ApertusSFTDataset of swiss-ai/Megatron-LM reads it."
        ]


def _write_index(name: str, ends: npt.NDArray[np.int64], dtype: str, target: Target) -> None:
    """Writes an index. ends: of the documents, in tokens."""
    lengths = np.diff(ends, prepend=0)
    pointers = (ends - lengths) * np.dtype(dtype).itemsize
    head = _MAGIC + struct.pack("<QBQQ", 1, _CODES[dtype], len(ends), len(ends) + 1)
    documents = np.arange(len(ends) + 1, dtype="<i8")
    target.write(name, [head, lengths.astype("<i4"), pointers.astype("<i8"), documents])
