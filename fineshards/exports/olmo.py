"""Dolma's and OLMo-core's arrays (olmo_core/data/utils.py).

`part-0-00000.npy` holds the tokens and nothing else: it has no header, though it is named `.npy`.
`part-0-00000.csv.gz` has a line per document: start and end in tokens, id, source file, line of it.
"""

import gzip
import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import Part, PartReader

# Lines that are made into text at a time.
_LINES = 1 << 16


class Olmo(ExportFormat):
    """Read by OLMo-core's NumpyFSLDataset and its kin."""

    reading = 'NumpyFSLDatasetConfig(paths=["FOLDER/train/*.npy"], expand_glob=True, ...)'
    revision = 2  # lines from 1
    masks = True

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        stem = f"{part.split}/part-0-{part.index:05d}"
        ends, sources = reader.documents()
        target.write(f"{stem}.npy", reader.chunks())
        if settings.masks:
            target.write(f"label_mask/{stem}.npy", reader.masks())
        starts = pa.array([0, *ends[:-1].tolist()], pa.int64())
        names = [_in_one_line(sources[column]) for column in ("id", "file")]
        lines = pc.add(sources["row"], 1)  # Dolma counts them from 1
        table = pa.table(
            [starts, pa.array(ends), *names, lines], ["start", "end", "id", "src", "loc"]
        )
        # Without a clock in it, so that the bytes are the same every time.
        with (
            target.create(f"{stem}.csv.gz") as file,
            gzip.GzipFile("", "wb", 6, io.BufferedWriter(file), mtime=0) as packed,
        ):
            options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
            for batch in table.to_batches(_LINES):
                pa_csv.write_csv(batch, packed, options)
        return Written(len(ends))

    def advice(self, settings: ExportSettings, parts: Sequence[Part]) -> list[str]:
        advice = ["The .npy files have no header: OLMo-core reads them, numpy.load does not."]
        if settings.masks:
            advice.append(
                'To learn answers only: label_mask_paths=["FOLDER/label_mask/train/*.npy"].'
            )
        if settings.eot == "end" and not all(part.append for part in parts):
            advice.append(
                "The last document of test goes on in train, so what test has of it ends without "
                "an EOT, and OLMo-core leaves that out. --split all exports both splits as one."
            )
        return advice


def _in_one_line(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Names with their ends of lines as visible escapes.

    OLMo-core reads line by line, also inside quotes.
    """
    for character, escape in (("\n", "\\n"), ("\r", "\\r")):
        names = pc.replace_substring(names, character, escape)
    return names
