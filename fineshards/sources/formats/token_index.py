"""Token files with an index that says where documents begin: of Megatron, and of datatrove.

Megatron: `NAME.bin` is tokens and nothing else. `NAME.idx` is

    9 bytes "MMIDIDX\\0\\0" | u64 1, the version | u8 type of the tokens | u64 sequences S |
    u64 documents + 1 | i32[S] lengths | i64[S] places in .bin, in bytes | i64[documents + 1]
    numbers of the first sequence of each document, and S

datatrove: `NAME.ds` is tokens and nothing else. `NAME.ds.index` is u64[documents], the end of each
document in tokens. `NAME.ds.metadata` is text, whose first line ends with `|` and the bytes per
token, and whose second line is the number of tokens.

Both are little-endian. A block is a run of documents. No file is read as a whole.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fineshards.errors import InputError
from fineshards.shards.job.records import Block, SourceFile
from fineshards.shards.job.settings import Columns
from fineshards.sources.files import open_file
from fineshards.sources.formats.token_bytes import ranges, read_array
from fineshards.sources.formats.token_rows import (
    BATCH_TOKENS,
    blocks_of,
    cut_blocks,
    rows_of_tokens,
)
from fineshards.sources.rows import Rows

# Documents whose places are in memory at a time.
_DOCUMENTS = 1 << 18

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
# Codes of Megatron, for the types that token ids have. It has none for uint32.
_DTYPES = {3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def check_head(file: SourceFile, opened: BinaryIO, columns: Columns) -> None:
    """Raises InputError for a file whose index has another header, or is of another size."""
    with _index_of(file) as index:
        _check_size(file, index)


def discover(file: SourceFile, opened: BinaryIO, columns: Columns, block_bytes: int) -> list[Block]:
    """Returns the blocks of a file; raises InputError if its index contradicts it or itself."""
    with _index_of(file) as index:
        index.check()
        _check_size(file, index)
        cuts = cut_blocks(_checked(file, index), max(1, block_bytes // index.dtype.itemsize))
        return blocks_of(file, cuts, index.dtype.itemsize, by_document=True)


def _check_size(file: SourceFile, index: _MegatronIndex | _DatatroveIndex) -> None:
    size = index.tokens * index.dtype.itemsize
    if size != file.size:
        raise InputError(
            f"{file.path} has {file.size:,} bytes, expected {size:,} by its index: "
            f"{index.tokens:,} tokens of {index.dtype.itemsize} bytes. One of the two files is "
            "truncated, or belongs to another."
        )


def read(file: SourceFile, opened: BinaryIO, columns: Columns, block: Block) -> Iterator[Rows]:
    """Yields the documents of a block in order; raises InputError for one that is not whole."""
    imported = columns.imported
    assert imported is not None
    with _index_of(file) as index:
        for first, stop in ranges(block.first_group, block.stop_group, _DOCUMENTS):
            borders = index.borders(first, stop)
            _check_ascending(file, borders, first)
            at = 0
            while at < stop - first:
                # At least one document; more while they fit.
                following = int(np.searchsorted(borders, borders[at] + BATCH_TOKENS, side="right"))
                end = max(at + 1, following - 1)
                start, count = int(borders[at]), int(borders[end] - borders[at])
                tokens = read_array(file, opened, index.dtype, start * index.dtype.itemsize, count)
                places = borders[at : end + 1] - start
                yield rows_of_tokens(file, imported, tokens, places, first + at)
                at = end


def _checked(
    file: SourceFile, index: _MegatronIndex | _DatatroveIndex
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The borders of all documents, in runs; raises InputError unless they cover the tokens."""
    end = 0
    for first, stop in ranges(0, index.documents, _DOCUMENTS):
        borders = index.borders(first, stop)
        if borders[0] != end:
            raise _damaged(file, first, int(borders[0]), end)
        _check_ascending(file, borders, first)
        end = int(borders[-1])
        yield first, borders
    if end != index.tokens:
        raise InputError(
            f"{file.path}: its index places {index.documents:,} documents in {end:,} tokens, "
            f"expected {index.tokens:,}. Write or download both files again."
        )


def _check_ascending(file: SourceFile, borders: npt.NDArray[np.int64], first: int) -> None:
    lengths = np.diff(borders)
    if len(lengths) and int(lengths.min()) < 0:
        document = int(np.argmax(lengths < 0))
        raise InputError(
            f"{file.path}, document {first + document}: has {lengths[document]} tokens by the "
            "index, expected 0 at least. Write or download both files again."
        )


def _damaged(file: SourceFile, document: int, found: int, expected: int) -> InputError:
    return InputError(
        f"{file.path}, document {document}: begins at token {found:,} by the index, expected "
        f"{expected:,}, where the one before it ends. Write or download both files again; an index "
        "that points into linked shards cannot be imported."
    )


@contextmanager
def _index_of(file: SourceFile) -> Iterator[_MegatronIndex | _DatatroveIndex]:
    """The index of a file, as long as it is open."""
    companion, *others = file.companions
    with open_file(companion, 1 << 20) as opened:
        if file.format == "megatron":
            yield _MegatronIndex.of(companion, opened)
        else:
            yield _DatatroveIndex.of(companion, opened, *others)


def _shortened(lines: list[str]) -> list[str]:
    return [line if len(line) <= 80 else f"{line[:77]}..." for line in lines]


@dataclass(frozen=True, slots=True)
class _MegatronIndex:
    """The index of a Megatron file, of which each document is one sequence or more."""

    file: SourceFile
    opened: BinaryIO
    dtype: np.dtype[np.integer]
    sequences: int
    documents: int

    @classmethod
    def of(cls, file: SourceFile, opened: BinaryIO) -> _MegatronIndex:
        """The index in a file; raises InputError for one that cannot be used."""
        head = opened.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise InputError(
                f"{file.path}: begins with {head[:9]!r}, expected {_MAGIC!r} and a header of "
                f"{_HEADER.size} bytes. It is not an index of Megatron."
            )
        _, version, code, sequences, ends = _HEADER.unpack(head)
        if version != 1 or code not in _DTYPES or not ends:
            raise InputError(
                f"{file.path}: has version {version}, type {code} of tokens and {ends} borders of "
                f"documents, expected version 1, one of the types {', '.join(map(str, _DTYPES))}, "
                "and a border at least. Write it again with Megatron's builder."
            )
        size = _HEADER.size + 12 * sequences + 8 * ends
        if file.size != size:
            raise InputError(
                f"{file.path} has {file.size:,} bytes, expected {size:,} by its header: "
                f"{sequences:,} sequences, {ends - 1:,} documents. It is truncated, or of a "
                "multimodal dataset, which cannot be imported."
            )
        return cls(file, opened, np.dtype(_DTYPES[code]), sequences, ends - 1)

    @property
    def tokens(self) -> int:
        """The number of tokens, by the end of the last sequence."""
        return int(self._places(self.sequences, self.sequences)[0])

    def check(self) -> None:
        """Raises InputError if the index contradicts itself."""
        end = 0
        for first, stop in ranges(0, self.sequences, _DOCUMENTS):
            lengths = self._lengths(first, stop)
            places = self._pointers(first, stop)
            ends = np.append(end, end + np.cumsum(lengths, dtype=np.int64)) * self.dtype.itemsize
            wrong = (places != ends[:-1]) | (lengths < 0)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise InputError(
                    f"{self.file.path}: sequence {first + at} has {lengths[at]} tokens from byte "
                    f"{places[at]:,} on, expected at least 0 from byte {ends[at]:,} on, where the "
                    "one before it ends. It is damaged, or points into linked files: export "
                    "without --link."
                )
            end = int(ends[-1]) // self.dtype.itemsize

    def borders(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Where documents [first, stop) begin, and the last one ends, in tokens."""
        at = _HEADER.size + 12 * self.sequences + 8 * first
        numbers = read_array(self.file, self.opened, "<i8", at, stop - first + 1)
        wrong = (numbers < 0) | (numbers > self.sequences)
        wrong[1:] |= np.diff(numbers) < 0
        if wrong.any():
            index = int(np.argmax(wrong))
            raise InputError(
                f"{self.file.path}: document {first + index} begins with sequence "
                f"{numbers[index]}, expected one up to {self.sequences}, and not before that of "
                "the document before. Write or download the file again."
            )
        low = int(numbers[0])
        found: npt.NDArray[np.int64] = self._places(low, int(numbers[-1]))[numbers - low]
        return found

    def _places(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Where sequences [first, last] begin, in tokens; after the last one is the end."""
        inner = self._pointers(first, min(last + 1, self.sequences)) // self.dtype.itemsize
        if last < self.sequences:
            return inner
        end = 0
        if self.sequences:
            before = self.sequences - 1
            end = int(self._pointers(before, before + 1)[0]) // self.dtype.itemsize
            end += int(self._lengths(before, before + 1)[0])
        return np.append(inner, np.int64(end))

    def _lengths(self, first: int, stop: int) -> npt.NDArray[np.int32]:
        return read_array(self.file, self.opened, "<i4", _HEADER.size + 4 * first, stop - first)

    def _pointers(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        at = _HEADER.size + 4 * self.sequences + 8 * first
        return read_array(self.file, self.opened, "<i8", at, stop - first)


@dataclass(frozen=True, slots=True)
class _DatatroveIndex:
    """The index of a datatrove file: where each document ends."""

    file: SourceFile
    opened: BinaryIO
    dtype: np.dtype[np.integer]
    documents: int
    tokens: int

    @classmethod
    def of(cls, file: SourceFile, opened: BinaryIO, metadata: SourceFile) -> _DatatroveIndex:
        """The index in a file; raises InputError for one that cannot be used."""
        if file.size % 8:
            raise InputError(
                f"{file.path} has {file.size:,} bytes, expected 8 per document. It is truncated; "
                "write or download it again."
            )
        with open_file(metadata, 1 << 12) as described:
            lines = described.read(1 << 16).decode("utf-8", "replace").splitlines()
        size = lines[0].rpartition("|")[2] if lines else ""
        tokens = lines[1] if len(lines) > 1 else ""
        # Python reads no number of thousands of digits; 18 are fewer than 63 bits.
        if size not in ("2", "4") or not re.fullmatch("[0-9]{1,18}", tokens):
            raise InputError(
                f"{metadata.path}: begins with {_shortened(lines[:2])}, expected a name that ends "
                "with |2 or |4, the bytes per token, and a line with the number of tokens. Write "
                "or download it again."
            )
        return cls(file, opened, np.dtype(f"<u{size}"), file.size // 8, int(tokens))

    def check(self) -> None:
        """Does nothing: the ends of documents have nothing to contradict."""

    def borders(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Where documents [first, stop) begin, and the last one ends, in tokens."""
        begin = max(first - 1, 0)
        ends = read_array(self.file, self.opened, "<i8", 8 * begin, stop - begin)
        return ends if first else np.append(np.int64(0), ends)
