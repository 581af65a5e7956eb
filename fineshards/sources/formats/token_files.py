"""Files of tokens with an index of their documents: datatrove's, and Megatron's.

`exports/datatrove.py` and `exports/megatron.py` describe and write them. A row is a document, and
its column is `input_ids`. A block ends with the document that reaches `--block_bytes`, of which a
reader of the index looks up its part alone.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.columns import TOKENS_COLUMN, check_columns
from fineshards.sources.files import is_url, open_file, place_of, state_of
from fineshards.sources.formats.format import Format, beside
from fineshards.sources.places.http_files import MissingError, RefusedError
from fineshards.sources.rows import BATCH_BYTES, BATCH_ROWS, RowBatch

_SCHEMA = pa.schema([(TOKENS_COLUMN, pa.large_list(pa.int64()))])
_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
# By the code in the index; the others are of numbers that are no ids.
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class _Ends(NamedTuple):
    """Where documents end in a file of tokens. tokens: int64. dtype: of a token."""

    tokens: npt.NDArray[np.int64]
    dtype: np.dtype[np.integer]


class TokenFile(Format):
    """What both formats have in common."""

    compressions = ("none",)
    has_columns = False
    holds_tokens = True

    def schema(self, file: SourceFile, opened: BinaryIO) -> pa.Schema:
        """See Format."""
        return _SCHEMA

    def ends(self, file: SourceFile, begin: int, stop: int | None) -> _Ends:
        """The end of the document before `begin`, 0 for the first, and those of `[begin, stop)`.

        stop: None for all. Raises InputError for an index that is missing or of another file.
        """
        raise NotImplementedError

    def blocks(
        self, file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int
    ) -> list[Block]:
        """See Format."""
        check_columns(file, _SCHEMA, columns)
        ends, dtype = self.ends(file, 0, None)
        size = dtype.itemsize
        if ends[0] or np.any(np.diff(ends) < 0) or int(ends[-1]) * size != file.size:
            raise InputError(
                f"{file.path} has {file.size:,} bytes, and its index is of {int(ends[-1]):,} "
                f"tokens of {size} bytes, in order. One of both is damaged, or of another file."
            )
        borders = [0]
        while borders[-1] < len(ends) - 1:
            full = int(ends[borders[-1]]) + -(-block_bytes // size)
            borders.append(min(int(np.searchsorted(ends, full)), len(ends) - 1))
        borders = borders if len(borders) > 1 else [0, 0]
        return [
            Block(
                *(file.index, index, len(borders) - 1, first, stop, first),
                int(ends[stop] - ends[first]) * size,
            )
            for index, (first, stop) in enumerate(pairwise(borders))
        ]

    def read(
        self, file: SourceFile, opened: BinaryIO, block: Block, columns: Columns
    ) -> Iterator[RowBatch]:
        """See Format."""
        ends, dtype = self.ends(file, block.first_group, block.stop_group)
        if int(ends[-1] - ends[0]) * dtype.itemsize != block.bytes:
            raise InputError(
                f"{file.path}: its index has changed since the job was launched. Put the old one "
                "back, or start over with --overwrite."
            )
        first = 0
        while first < len(ends) - 1:
            full = int(ends[first]) + BATCH_BYTES // dtype.itemsize
            stop = min(int(np.searchsorted(ends, full)), first + BATCH_ROWS, len(ends) - 1)
            begin, end = int(ends[first]), int(ends[stop])
            opened.seek(begin * dtype.itemsize)
            content = opened.read((end - begin) * dtype.itemsize)
            if len(content) != (end - begin) * dtype.itemsize:
                raise InputError(f"{file.path} ends early. It is damaged; copy it again.")
            values = pa.array(np.frombuffer(content, dtype).astype(np.int64))
            lists = pa.LargeListArray.from_arrays(ends[first : stop + 1] - begin, values)
            numbers = np.arange(first, stop, dtype=np.int64) + block.first_group
            yield RowBatch(numbers, pa.RecordBatch.from_arrays([lists], schema=_SCHEMA), [])
            first = stop


class Datatrove(TokenFile):
    """`NAME.ds` with `NAME.ds.index`, as of datatrove and `--to datatrove`."""

    endings = (".ds",)

    def companions(self, path: str) -> tuple[str, ...]:
        """See Format."""
        return tuple(beside(path, f".{name}") for name in ("index", "INDEX", "metadata", "loss"))

    def ends(self, file: SourceFile, begin: int, stop: int | None) -> _Ends:
        """See TokenFile."""
        *indexes, _, loss = self.companions(file.path)
        with suppress(RefusedError):  # which some servers answer for what is not there
            if begin == 0 and stop is None and _described(loss) is not None:
                raise InputError(
                    f"{loss} says which tokens are learned, which is not read, so a model would "
                    "learn prompts too. Move it away, if that is right."
                )
        with _opened(file, indexes) as (described, opened):
            count = described.size // 8
            (total,) = _numbers(file, opened, "<u8", count - 1, count) if count else (0,)
            last = count if stop is None else stop
            ends = _numbers(file, opened, "<u8", max(begin - 1, 0), last).astype(np.int64)
        ends = ends if begin else np.append(0, ends)
        size = 4 if int(total) * 4 == file.size else 2
        return _Ends(ends, np.dtype(f"<u{size}"))


class Megatron(TokenFile):
    """`NAME.bin` with `NAME.idx`, as of Megatron-LM and `--to megatron`."""

    endings = (".bin",)

    def companions(self, path: str) -> tuple[str, ...]:
        """See Format."""
        return tuple(beside(path, ending, replaced=".bin") for ending in (".idx", ".IDX"))

    def ends(self, file: SourceFile, begin: int, stop: int | None) -> _Ends:
        """See TokenFile. A document may consist of several sequences, such as its sentences."""
        with _opened(file, self.companions(file.path)) as (described, opened):
            index = described.path
            head = opened.read(_HEAD.size).ljust(_HEAD.size, b"\0")
            magic, version, code, sequences, documents = _HEAD.unpack(head)
            size = _HEAD.size + 12 * sequences + 8 * documents
            if (magic, version) != (_MAGIC, 1) or described.size < size or not documents:
                raise InputError(
                    f"{index} is not an index of Megatron's of version 1, or is damaged. Only "
                    f"files with such an index are read, of those named {file.path[-4:]}."
                )
            if code not in _DTYPES:
                raise InputError(
                    f"{file.path} holds numbers of type {code}, which are no token ids, such as a "
                    "loss mask. Masks are not read. Exclude the file, if all tokens may be learned."
                )
            at = _HEAD.size + 12 * sequences
            last = documents - 1 if stop is None else stop
            borders = _numbers(file, opened, "<i8", begin, last + 1, at).astype(np.int64)
            if np.any(np.diff(borders) < 0) or not 0 <= borders[0] <= borders[-1] <= sequences:
                raise InputError(f"{index}: its documents are not in order. It is damaged.")
            first, end = int(borders[0]), int(borders[-1])
            lengths = _numbers(file, opened, "<i4", first, end, _HEAD.size)
            pointers = _numbers(file, opened, "<i8", first, end, _HEAD.size + 4 * sequences)
        dtype = np.dtype(_DTYPES[code])
        base = int(pointers[0]) // dtype.itemsize if len(pointers) else 0
        begins = base + np.append(0, np.cumsum(lengths, dtype=np.int64))
        if np.any(lengths < 0) or np.any(begins[:-1] * dtype.itemsize != pointers):
            raise InputError(
                f"{index}: its sequences do not follow each other in {file.path}. Write the "
                "documents in order."
            )
        return _Ends(begins[borders - first], dtype)


def _numbers(
    file: SourceFile, opened: BinaryIO, dtype: str, begin: int, stop: int, at: int = 0
) -> npt.NDArray[np.integer]:
    """Numbers `[begin, stop)` of an array that begins at a byte of an index."""
    size = np.dtype(dtype).itemsize
    opened.seek(at + begin * size)
    content = opened.read((stop - begin) * size)
    if len(content) != (stop - begin) * size:
        raise InputError(f"{file.path}: its index ends early. It is damaged; copy it again.")
    return np.frombuffer(content, dtype)


@contextmanager
def _opened(file: SourceFile, paths: Sequence[str]) -> Iterator[tuple[SourceFile, BinaryIO]]:
    """The first of some indexes that is there, described and opened; raises InputError for none."""
    described = next(filter(None, map(_described, paths)), None)
    if described is None:
        raise InputError(
            f"{paths[0]} is missing, which says where documents end in {file.path}. Put it there."
        )
    with open_file(described, 0) as opened:
        yield described, opened


def _described(path: str) -> SourceFile | None:
    """A file beside another one, as it is now; None if there is none."""
    if is_url(path):
        return _described_far(path)
    state = state_of(SourceFile(0, path, 0, "", "text", "none"))
    return state and SourceFile(0, path, *state, "text", "none")


@lru_cache(maxsize=64)
def _described_far(path: str) -> SourceFile | None:
    """As `_described`, of a URL. Looked up once: reading another version of it is refused."""
    with suppress(MissingError):
        for file in place_of(path).find(path):
            if file.path == path:
                return SourceFile(0, path, file.size, file.identity, "text", "none")
    return None
