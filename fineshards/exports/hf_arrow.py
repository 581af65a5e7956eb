"""Folders as `Dataset.save_to_disk` of Hugging Face's datasets makes them.

`SPLIT/data-00000-of-00001.arrow` is a stream of Arrow's IPC format, `SPLIT/dataset_info.json` has
the types of the columns, and `SPLIT/state.json` the names of the files and a fingerprint.
`dataset_dict.json` names the splits.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from fineshards.exports.format import ExportSettings, Target, Written
from fineshards.exports.input_ids import InputIds, batches, row_ends, schema_of, types_of
from fineshards.exports.parts import PartReader
from fineshards.exports.record import PartRecord


class HfArrow(InputIds):
    """Read by `datasets.load_from_disk`, which maps the files into memory."""

    reading = 'load_from_disk("FOLDER")["train"]'
    revision = 2  # `Sequence`, `dataset_dict.json`

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        ends = row_ends(reader, settings.sequence_length)
        features = {"info": {"features": _features(settings)}}
        metadata = {"huggingface": json.dumps(features)}
        schema = schema_of(settings.columns).with_metadata(metadata)
        with (
            target.create(f"{part.split}/data-{part.index:05d}-of-{part.count:05d}.arrow") as file,
            pa.ipc.new_stream(file, schema) as writer,
        ):
            for batch in batches(reader, ends, settings.columns, settings.masks):
                writer.write_batch(batch.replace_schema_metadata(metadata))
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
        info = {"citation": "", "description": "", "features": _features(settings)}
        info |= {"homepage": "", "license": ""}
        yield f"{split}/dataset_info.json", json.dumps(info, indent=2).encode()

    def finish_all(
        self, records: Sequence[PartRecord], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        splits = sorted({record.split for record in records})
        yield "dataset_dict.json", json.dumps({"splits": splits}).encode()


def _features(settings: ExportSettings) -> dict[str, Any]:
    """The types of the columns, as the library describes them."""
    # Versions before 4 know no `List`, and later ones read `Sequence` as one.
    return {
        name: {"feature": {"dtype": type_, "_type": "Value"}, "_type": "Sequence"}
        for name, type_ in types_of(settings.columns).items()
    }
