"""Parquet files with the column `input_ids`, named as on the Hugging Face Hub."""

from __future__ import annotations

import pyarrow.parquet as pq

from fineshards.exports.format import Settings, Target, Written
from fineshards.exports.input_ids import SCHEMA, InputIds, batches, row_ends
from fineshards.exports.parts import PartReader


class Parquet(InputIds):
    """Read by `datasets.load_dataset`, and by all that reads Parquet."""

    name = "parquet"

    def write(self, reader: PartReader, settings: Settings, target: Target) -> Written:
        part = reader.part
        ends = row_ends(reader, settings.sequence_length)
        # Dictionaries and statistics of token ids make files larger and slower.
        options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
        with (
            target.create(f"{part.split}-{part.index:05d}-of-{part.count:05d}.parquet") as file,
            pq.ParquetWriter(file, SCHEMA, write_page_checksum=True, **options) as writer,
        ):
            for batch in batches(reader, ends):
                writer.write_batch(batch, row_group_size=len(batch))
        return Written(len(ends) if settings.sequence_length is None else None)
