"""ArrayRecord files, whose records are `tf.train.Example` messages, as MaxText's Grain reads them.

A record is a document, or with `--sequence_length` so many tokens of the stream; the last one may
be shorter. Its one feature is an `Int64List`. The message is a few nested fields around the tokens,
encoded here as protobuf does: each field is a key, a size and its content, and numbers are varints,
seven bits per byte. The files around the records are made by the library, whose version decides
their bytes.
"""

import os
import shutil

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError, UsageError
from fineshards.exports.format import ExportFormat, ExportSettings, Target, Written
from fineshards.exports.input_ids import row_ends
from fineshards.exports.parts import PartReader
from fineshards.storage.temporary import scratch_folder

# Grain wants each record on its own. One thread per file: files are written side by side.
_OPTIONS = "group_size:1,zstd:3,max_parallelism:1"
# Bytes that a message may have.
_MOST_BYTES = (1 << 31) - 1
_SHIFTS = np.arange(0, 32, 7, dtype=np.uint32)
# Tokens that are encoded at a time.
_CHUNK = 1 << 16


class ArrayRecord(ExportFormat):
    """Read by MaxText, and by Grain's ArrayRecordDataSource."""

    reading = 'grain.python.ArrayRecordDataSource(sorted(glob("FOLDER/train-*")))'
    sides = ("begin", "end")
    tokens_per_file = "shard"
    rows = True
    # MaxText makes int32 of them.
    most_ids = 1 << 31
    libraries = ("array_record",)
    fixed_dtype = "lists of int64"
    token_column = "text"  # MaxText's default of `train_data_columns`

    def write(self, reader: PartReader, settings: ExportSettings, target: Target) -> Written:
        # Imported here, because it is in an extra.
        from array_record.python.array_record_module import ArrayRecordWriter

        part, feature = reader.part, settings.token_column
        ends = row_ends(reader, settings.sequence_length)
        name = f"{part.split}-{part.index:05d}-of-{part.count:05d}.array_record"
        # The library writes to paths only.
        with scratch_folder() as folder:
            path = os.path.join(folder, name)
            try:
                writer = ArrayRecordWriter(path, _OPTIONS)
                for row in reader.pieces(np.diff(ends, prepend=0)):
                    writer.write(_example(feature, row))
                writer.close()
            except RuntimeError as error:
                raise OutputError(
                    f"a temporary file cannot be written: {error}. Free some space there, or set "
                    "TMPDIR to another folder."
                ) from error
            with open(path, "rb") as source, target.create(name) as file:
                shutil.copyfileobj(source, file, 1 << 20)
        return Written(len(ends) if settings.sequence_length is None else None)


def _example(name: str, tokens: npt.NDArray[np.unsignedinteger]) -> bytes:
    """A `tf.train.Example` with a feature that is a list of tokens."""
    chunks = range(0, len(tokens), _CHUNK)
    numbers = b"".join(_varints(tokens[at : at + _CHUNK]) for at in chunks)
    feature = _field(3, _field(1, numbers))  # Feature.int64_list, Int64List.value
    entry = _field(1, name.encode()) + _field(2, feature)  # of the map Features.feature
    example = _field(1, _field(1, entry))  # Example.features, Features.feature
    if len(example) > _MOST_BYTES:
        raise UsageError(
            f"a row of {len(tokens):,} tokens would have {len(example):,} bytes, and a message of "
            f"protobuf has at most {_MOST_BYTES:,}. Give --sequence_length, or a smaller one."
        )
    return example


def _field(number: int, content: bytes) -> bytes:
    """A field of a message, which has a size."""
    return bytes([number << 3 | 2]) + _varints(np.array([len(content)], np.uint32)) + content


def _varints(numbers: npt.NDArray[np.unsignedinteger]) -> bytes:
    """Numbers below 2^32, lowest bits first; 128 marks every byte but the last one of a number."""
    shifted = numbers.astype(np.uint32)[:, None] >> _SHIFTS
    used = shifted > 0
    used[:, 0] = True
    content = shifted & 127 | np.where(shifted > 127, 128, 0)
    return content[used].astype(np.uint8).tobytes()
