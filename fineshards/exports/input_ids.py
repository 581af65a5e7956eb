"""Rows with the column `input_ids`: Parquet files named as on the Hugging Face Hub, and folders as
`Dataset.save_to_disk` of its library `datasets` makes them.

`labels` and `attention_mask` can be written as well, for trainers that take rows with all three
only: the labels are the tokens, which models of transformers shift themselves, and the mask is 1.
Conversations always have labels, which are -100 where they are not learned.

A row is a document, or with `--sequence_length` so many tokens of the stream; the last one may be
shorter. Tokens are int32, which trainers take as they are.

Of a folder, `SPLIT/data-00000-of-00001.arrow` is a stream of Arrow's IPC format,
`SPLIT/dataset_info.json` has the types of the columns, and `SPLIT/state.json` the names of the
files and a fingerprint. `dataset_dict.json` names the splits.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fineshards.errors import UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.parts import PartReader
from fineshards.exports.record import PartRecord, digest_of

# What is held in memory at a time, but for a document that is larger.
_BATCH_TOKENS = 1 << 22
# Offsets in a list array are int32.
_LONGEST = (1 << 31) - 1 - _BATCH_TOKENS
# What transformers and PyTorch leave out of the loss.
_NOT_LEARNED = -100
_TYPES = {"input_ids": "int32", "labels": "int32", "attention_mask": "int8"}


class InputIds(ExportFormat):
    """Base class of the formats with this column."""

    sides = ("begin", "end")
    tokens_per_file = "shard"
    rows = True
    most_ids = 1 << 31
    libraries = ("pyarrow",)
    by_eot = False
    fixed_dtype = "lists of int32"
    own_columns = ("input_ids",)
    offered_columns = ("labels", "attention_mask")
    masks = True


class Parquet(InputIds):
    """Read by `datasets.load_dataset`, and by all that reads Parquet."""

    reading = 'load_dataset("FOLDER")["train"]'

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        ends = row_ends(reader, settings.sequence_length)
        # Dictionaries and statistics of token ids make files larger and slower.
        options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
        with (
            target.create(f"{part.split}-{part.index:05d}-of-{part.count:05d}.parquet") as file,
            pq.ParquetWriter(
                file, _schema_of(settings.columns), write_page_checksum=True, **options
            ) as writer,
        ):
            for batch in batches(reader, ends, settings.columns, settings.masks):
                writer.write_batch(batch, row_group_size=len(batch))
        return Written(len(ends) if settings.sequence_length is None else None)


class HfArrow(InputIds):
    """Read by `datasets.load_from_disk`, which maps the files into memory."""

    reading = 'load_from_disk("FOLDER")["train"]'
    revision = 2  # `Sequence`, `dataset_dict.json`

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        part = reader.part
        ends = row_ends(reader, settings.sequence_length)
        features = {"info": {"features": _features(settings)}}
        metadata = {"huggingface": json.dumps(features)}
        schema = _schema_of(settings.columns).with_metadata(metadata)
        with (
            target.create(f"{part.split}/data-{part.index:05d}-of-{part.count:05d}.arrow") as file,
            pa.ipc.new_stream(file, schema) as writer,
        ):
            for batch in batches(reader, ends, settings.columns, settings.masks):
                writer.write_batch(batch.replace_schema_metadata(metadata))
        return Written(len(ends) if settings.sequence_length is None else None)

    def finish(
        self, parts: Mapping[str, Sequence[PartRecord]], settings: ExportSettings
    ) -> Iterator[tuple[str, bytes]]:
        info = {"citation": "", "description": "", "features": _features(settings)}
        info |= {"homepage": "", "license": ""}
        for split, records in parts.items():
            names = [file.name.rpartition("/")[2] for of in records for file in of.files]
            state: dict[str, Any] = {
                "_data_files": [{"filename": name} for name in names],
                # Names the caches of what is computed from the dataset.
                "_fingerprint": digest_of(records),
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": None,
                "_output_all_columns": False,
                "_split": split,
            }
            yield f"{split}/state.json", json.dumps(state, indent=2).encode()
            yield f"{split}/dataset_info.json", json.dumps(info, indent=2).encode()
        yield "dataset_dict.json", json.dumps({"splits": [*parts]}).encode()


def _types_of(columns: Sequence[str]) -> dict[str, str]:
    """The type of a value in the lists of each column. columns: in addition to `input_ids`."""
    return {name: _TYPES[name] for name in ("input_ids", *columns)}


def _schema_of(columns: Sequence[str]) -> pa.Schema:
    """The columns of lists."""
    types = _types_of(columns).items()
    return pa.schema([(name, pa.list_(pa.type_for_alias(type_))) for name, type_ in types])


def _features(settings: ExportSettings) -> dict[str, Any]:
    """The types of the columns, as the library describes them."""
    # Versions before 4 know no `List`, and later ones read `Sequence` as one.
    return {
        name: {"feature": {"dtype": type_, "_type": "Value"}, "_type": "Sequence"}
        for name, type_ in _types_of(settings.columns).items()
    }


def row_ends(reader: PartReader, sequence_length: int | None) -> npt.NDArray[np.int64]:
    """Where each row ends, in tokens of the part: int64, shape (rows,).

    Raises UsageError for a row that a list cannot hold.
    """
    tokens = reader.part.tokens
    if sequence_length is None:
        ends = reader.ends()
    else:
        ends = np.append(np.arange(sequence_length, tokens, sequence_length), tokens)
    if (longest := int(np.diff(ends, prepend=0).max(initial=0))) > _LONGEST:
        raise UsageError(
            f"a row of {reader.part.split} would have {longest:,} tokens, and can have at most "
            f"{_LONGEST:,}. Give --sequence_length, or a smaller one."
        )
    return ends


def batches(
    reader: PartReader,
    ends: npt.NDArray[np.int64],
    columns: Sequence[str] = (),
    masks: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, some millions of tokens at a time. Depends on the rows alone."""
    schema = _schema_of(columns)
    # A row is in the batch of its last token.
    number = (ends - 1) // _BATCH_TOKENS
    borders = np.append(np.flatnonzero(np.diff(number, prepend=-1)), len(ends))
    starts = np.append(0, ends)
    pieces = reader.pieces(np.diff(starts[borders]))
    for (first, last), piece in zip(pairwise(borders.tolist()), pieces, strict=True):
        tokens = piece.astype(np.int32)
        offsets = pa.array((starts[first : last + 1] - starts[first]).astype(np.int32))
        values = {"input_ids": tokens, "attention_mask": np.ones(len(tokens), np.int8)}
        values["labels"] = tokens
        if masks:
            learned = reader.learned(int(starts[first]), int(starts[last]))
            values["labels"] = np.where(learned, tokens, np.int32(_NOT_LEARNED))
        lists = [pa.ListArray.from_arrays(offsets, pa.array(values[name])) for name in schema.names]
        yield pa.RecordBatch.from_arrays(lists, schema=schema)
