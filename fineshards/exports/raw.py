"""nanoGPT's `train.bin` and `val.bin`: tokens and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from fineshards.exports.format import Format, Settings, Target, Written, write_tokens
from fineshards.exports.parts import Part, PartReader


class Raw(Format):
    """Tokens without a header. One file per split, or numbered ones with `--tokens_per_file`."""

    name = "raw"
    sides = ("begin", "end")
    cuts = "tokens"
    tokens_per_file = None

    def write(self, reader: PartReader, settings: Settings, target: Target) -> Written:
        part = reader.part
        split = "val" if part.split == "test" else part.split
        number = "" if settings.tokens_per_file is None else f"_{part.index:06d}"
        with target.create(f"{split}{number}.bin") as file:
            write_tokens(reader, file)
        return Written()

    def advice(self, settings: Settings, parts: Sequence[Part]) -> list[str]:
        if settings.dtype == "uint16":
            return []
        return ["nanoGPT's train.py reads uint16: change np.uint16 to np.uint32 in get_batch."]
