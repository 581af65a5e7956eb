"""An export: text files with a document per line, as its tokens in decimal digits."""

import numpy as np

from fineshards.plugins import ExportFormat, ExportSettings, PartReader, Target, Written


class Lines(ExportFormat):
    """Lines of token ids with spaces between them; each ends with the end-of-text token."""

    reading = "[line.split() for line in open('FOLDER/train-00000.txt')]"
    tokens_per_file = "shard"

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part, ends = reader.part, reader.ends()
        with target.create(f"{part.split}-{part.index:05d}.txt") as file:
            for document in reader.pieces(np.diff(ends, prepend=0)):
                file.write(b" ".join(str(token).encode() for token in document.tolist()) + b"\n")
        return Written(documents=len(ends))
