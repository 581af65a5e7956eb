"""`.bin` files: tokens alone for nanoGPT and torchtitan, and behind 256 numbers for llm.c and its
relatives.

The numbers are int32: a magic one, a version, the number of tokens, and for NeMo the bytes per
token; the rest are 0. The EOT leads, as in our shards.

- llm.c: llmc/dataloader.h and dev/data/data_common.py for uint16; train_llama3.py for uint32.
- NeMo Automodel: nemo_automodel/components/datasets/llm/nanogpt_dataset.py.
- modded-nanogpt: train_gpt.py.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain

import numpy as np

from fineshards.errors import UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader

_HEADER_NUMBERS = 256
# Counts and positions of these readers are 32-bit integers.
_LIMIT = 1 << 31
# The EOT of GPT-2, which modded-nanogpt looks for.
_GPT2_EOT = 50_256


class Raw(ExportFormat):
    """nanoGPT: tokens alone. One file per split, or numbered ones with `--tokens_per_file`."""

    reading = "python train.py --dataset=FOLDER  # below data/"
    sides = ("begin", "end")
    cuts = "tokens"
    tokens_per_file = None

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        split = "val" if part.split == "test" else part.split
        number = "" if settings.tokens_per_file is None else f"_{part.index:06d}"
        target.write(f"{split}{number}.bin", reader.chunks())
        return Written()

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        if settings.dtype == "uint16":
            return []
        return ["nanoGPT's train.py reads uint16: change np.uint16 to np.uint32 in get_batch."]


class Torchtitan(ExportFormat):
    """Tokens alone, and where documents begin: the source of pretokenized data in its manual.

    `SPLIT_offsets.npy` has one int64 more than there are documents (torchtitan/components/data).
    """

    reading = "tokens_path='FOLDER/train.bin', document_offsets_path='FOLDER/train_offsets.npy'"
    tokens_per_file = None
    by_eot = False

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part, ends = reader.part, reader.ends()
        number = "" if settings.tokens_per_file is None else f"_{part.index:06d}"
        target.write(f"{part.split}{number}.bin", reader.chunks())
        with target.create(f"{part.split}{number}_offsets.npy") as file:
            np.save(file, np.append(0, ends))
        return Written(len(ends))


class _TokenBins(ExportFormat):
    """Base class of the formats whose files begin with a header."""

    sides = ("begin",)
    cuts = "tokens"
    tokens_per_file = "shard"

    @abstractmethod
    def numbers(self, settings: ExportSettings, tokens: int) -> tuple[int, ...]:
        """The first numbers of the header."""

    def check(self, settings: ExportSettings, parts: Sequence[Part]) -> None:
        size = settings.token_dtype.itemsize
        for part in parts:
            if part.tokens * size + 4 * _HEADER_NUMBERS >= _LIMIT:
                raise UsageError(
                    f"--to {settings.to}: a file would have {part.tokens:,} tokens, and its "
                    "readers count bytes in 31 bits. Give smaller --tokens_per_file."
                )

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        # Readers find the validation set by this word.
        split = "val" if part.split == "test" else part.split
        header = np.zeros(_HEADER_NUMBERS, "<i4")
        numbers = self.numbers(settings, part.tokens)
        header[: len(numbers)] = numbers
        name = f"tokens_{split}_{part.index:06d}.bin"
        target.write(name, chain([header], reader.chunks()))
        return Written()


class Llmc(_TokenBins):
    """llm.c: GPT-2's uint16 tokens, or Llama 3's uint32."""

    reading = './train_gpt2cu -i "FOLDER/tokens_train_*.bin" -j "FOLDER/tokens_val_*.bin"'

    def numbers(self, settings: ExportSettings, tokens: int) -> tuple[int, ...]:
        kind = (20240520, 1) if settings.dtype == "uint16" else (20240801, 7)
        return (*kind, tokens)

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        if settings.dtype == "uint16":
            return []
        return ["Files of uint32 are read by train_llama3.py only, not by the loader in C."]


class Nemo(_TokenBins):
    """NeMo Automodel's nanoGPT datasets."""

    reading = 'NanogptDataset(file_pattern="FOLDER/tokens_train_*.bin", seq_len=1024)'

    def numbers(self, settings: ExportSettings, tokens: int) -> tuple[int, ...]:
        return (278895051, 1, tokens, settings.token_dtype.itemsize)


class ModdedNanogpt(_TokenBins):
    """modded-nanogpt: uint16."""

    reading = 'train_files = "FOLDER/tokens_train_*.bin"  # in train_gpt.py'
    dtypes = ("uint16",)

    def numbers(self, settings: ExportSettings, tokens: int) -> tuple[int, ...]:
        return (20240520, 1, tokens)

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        advice = []
        if settings.eot_id != _GPT2_EOT:
            advice.append(
                f"modded-nanogpt looks for the token {_GPT2_EOT} (GPT-2's EOT), and this "
                f"tokenizer's is {settings.eot_id}: change BOS_ID in train_gpt.py."
            )
        # Its loader opens the next file of training before it needs it.
        if len([part for part in parts if part.split != "test"]) == 1:
            advice.append(
                "modded-nanogpt needs two files to train on, and this is one: export again into "
                "another folder with smaller --tokens_per_file."
            )
        return advice
