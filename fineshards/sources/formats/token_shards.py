"""Where the tokens are in shards that begin with offsets: MosaicML's MDS, and litdata's chunks.

MDS: u32 rows | u32[rows + 1] places of the rows and of the end | a JSON object, of which
`column_encodings` and `column_sizes` are read | rows. Only one column of arrays is read. A row of
`ndarray:uint32:T` is T tokens. One of `ndarray:uint32` is u32 bytes that follow | u8 4 + c | the
number of tokens, of 1 << c bytes, as few as hold it | tokens.

litdata: u32 items | u32[items + 1] places of the items and of the end | tokens, whose type is in
`index.json`.

All are little-endian, and documents may go on in the next row and shard.
"""

from __future__ import annotations

import json
import re
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.formats.token_bytes import read_array

_ARRAY = re.compile(r"ndarray:(u?int(?:16|32|64))(?::(\d+))?")


class Runs(NamedTuple):
    """Runs of tokens in a file.

    dtype: of a token. firsts: the number of the first token of each run, and of all tokens, shape
    (runs + 1,). places: where each run is, in bytes, shape (runs,).
    """

    dtype: np.dtype[np.integer]
    firsts: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def one_run(dtype: np.dtype[np.integer], place: int, tokens: int) -> Runs:
    """Tokens that follow each other."""
    return Runs(dtype, np.array([0, tokens], np.int64), np.array([place], np.int64))


def runs_of_mds(file: SourceFile, opened: BinaryIO, size: int) -> Runs:
    """The rows of an MDS shard; raises InputError for one that is damaged, or holds other rows.

    size: of the content of the file, in bytes.
    """
    places = _places(file, opened, size)
    head = 4 * (len(places) + 1)
    try:
        config = json.loads(read_array(file, opened, "u1", head, int(places[0]) - head).tobytes())
        (encoding,), (row,) = config["column_encodings"], config["column_sizes"]
        found = _ARRAY.fullmatch(encoding)
        if found is None:
            raise ValueError(f"its column is {encoding}")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file.path}: expected an MDS shard with one column of arrays, such as "
            f"ndarray:uint32, but {error}. Write such shards."
        ) from error
    dtype = np.dtype(found[1]).newbyteorder("<")
    sizes = np.diff(places)
    if found[2] is not None:
        if (sizes != row).any() or row != int(found[2]) * dtype.itemsize:
            raise _damaged(file, "a row has another size than the others")
        return one_run(dtype, int(places[0]), int(found[2]) * len(sizes))
    # The number of tokens takes as few bytes as hold it, so that of a row's bytes says both.
    tokens, heads = np.full(len(sizes), -1), np.zeros(len(sizes), np.int64)
    for width in (1, 2, 4):
        counts, rest = np.divmod(sizes - 5 - width, dtype.itemsize)
        fits = (counts >= (1 << 4 * width if width > 1 else 1)) & (counts < 1 << 8 * width)
        fits &= rest == 0
        tokens[fits], heads[fits] = counts[fits], 5 + width
    if (tokens < 0).any():
        raise _damaged(file, f"row {int(np.argmax(tokens < 0))} is no array of one axis")
    return Runs(dtype, np.append(0, np.cumsum(tokens)), places[:-1] + heads)


def run_of_litdata(file: SourceFile, opened: BinaryIO, dtype: str) -> Runs:
    """The tokens of a chunk of litdata; raises InputError for one that is damaged."""
    places = _places(file, opened, file.size)
    kind = np.dtype(dtype)
    if places[0] != 4 * (len(places) + 1) or (places[-1] - places[0]) % kind.itemsize:
        raise _damaged(file, "its items are not after their places, or no whole tokens")
    return one_run(kind, int(places[0]), int(places[-1] - places[0]) // kind.itemsize)


def _places(file: SourceFile, opened: BinaryIO, size: int) -> npt.NDArray[np.int64]:
    """Where the items of a shard are, and where the last one ends."""
    if size < 8:
        raise _damaged(file, f"it has {size:,} bytes")
    count = int(read_array(file, opened, "<u4", 0, 1)[0])
    if 4 * (count + 2) > size:
        raise _damaged(file, f"its first number, of its items, is {count:,}")
    places = read_array(file, opened, "<u4", 4, count + 1).astype(np.int64)
    if places[0] < 4 * (count + 2) or places[-1] != size or (np.diff(places) < 0).any():
        raise _damaged(file, f"its items must follow each other to its end, byte {size:,}")
    return places


def _damaged(file: SourceFile, why: str) -> InputError:
    return InputError(
        f"{file.path} is truncated, of another layout, or points elsewhere: {why}. Write or "
        "download it again; see --from."
    )
