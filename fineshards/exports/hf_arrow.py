"""Folders as `Dataset.save_to_disk` of Hugging Face's datasets makes them.

`SPLIT/data-00000-of-00001.arrow` is a stream of Arrow's IPC format, `SPLIT/dataset_info.json` has
the types of the columns, and `SPLIT/state.json` the names of the files and a fingerprint.
`dataset_dict.json` names the splits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from fineshards.exports.format import ExportSettings, Target, Written
from fineshards.exports.input_ids import SCHEMA, InputIds, batches, row_ends
from fineshards.exports.parts import PartReader
from fineshards.exports.record import PartRecord

# Versions before 4 know no `List`, and later ones read `Sequence` as one.
_FEATURES = {
    "input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "Sequence"},
}
_INFO = {"citation": "", "description": "", "features": _FEATURES, "homepage": "", "license": ""}
_METADATA = {"huggingface": json.dumps({"info": {"features": _FEATURES}})}


class HfArrow(InputIds):
    """Read by `datasets.load_from_disk`, which maps the files into memory."""

    name = "hf-arrow"
    reading = 'load_from_disk("FOLDER")["train"]'
    revision = 2  # `Sequence`, `dataset_dict.json`

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        ends = row_ends(reader, settings.sequence_length)
        schema = SCHEMA.with_metadata(_METADATA)
        with (
            target.create(f"{part.split}/data-{part.index:05d}-of-{part.count:05d}.arrow") as file,
            pa.ipc.new_stream(file, schema) as writer,
        ):
            for batch in batches(reader, ends):
                writer.write_batch(batch.replace_schema_metadata(_METADATA))
        return Written(len(ends) if settings.sequence_length is None else None)

    def finish(
        self, split: str, records: Sequence[PartRecord], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        files = [file for record in records for file in record.files]
        checksums = json.dumps([file.crc32c for file in files]).encode()
        state: dict[str, Any] = {
            "_data_files": [{"filename": file.name.rpartition("/")[2]} for file in files],
            # Names the caches of what is computed from the dataset.
            "_fingerprint": hashlib.sha256(checksums).hexdigest()[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": split,
        }
        yield f"{split}/state.json", json.dumps(state, indent=2).encode()
        yield f"{split}/dataset_info.json", json.dumps(_INFO, indent=2).encode()

    def finish_all(self, splits: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        yield "dataset_dict.json", json.dumps({"splits": [*splits]}).encode()
