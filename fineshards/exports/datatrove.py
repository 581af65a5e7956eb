"""datatrove's tokenized documents (datatrove/pipeline/tokens/tokenizer.py), which nanotron reads.

`NAME.ds` holds the tokens. `NAME.ds.index` has the end of each document in tokens, u64.
`NAME.ds.metadata` has three lines: `tokenizer|bytes per token`, the number of tokens, and that
number for people. `NAME.ds.loss` has a byte per token of conversations, 1 where it is learned.
"""

from collections.abc import Sequence

from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader


class Datatrove(ExportFormat):
    """Read by datatrove's DatatroveFolderDataset, and by nanotron's Nanosets."""

    reading = 'DatatroveFolderDataset("FOLDER/train", seq_len=2048)'
    by_eot = False
    masks = True

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        name = f"{part.split}/{part.index:05d}_unshuffled.ds"
        ends = reader.ends()
        target.write(name, reader.chunks())
        if settings.masks:
            target.write(f"{name}.loss", reader.masks())
        target.write(f"{name}.index", [ends.astype("<u8")])
        tokenizer = f"{settings.tokenizer}|{settings.token_dtype.itemsize}"
        metadata = f"{tokenizer}\n{part.tokens}\n{_for_people(part.tokens)}"
        target.write(f"{name}.metadata", metadata.encode())
        return Written(len(ends))

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        positions = "true" if settings.eot == "end" else "false"
        return [
            "for nanotron: dataset_folder: [FOLDER/train], token_size_in_bytes: "
            f"{settings.token_dtype.itemsize}, vocab_size: {settings.vocabulary}, "
            f"return_positions: {positions}"
        ]


def _for_people(tokens: int) -> str:
    """A count with three digits and a unit, as humanize.metric(tokens, unit="T") writes it."""
    unit, digits = divmod(len(str(tokens)) - 1, 3)
    return f"{tokens / 1000**unit:.{2 - digits}f} {('', 'k', 'M', 'G', 'T', 'P')[unit]}T"
