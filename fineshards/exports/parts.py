"""The parts of an export: which tokens each output file holds. Pure functions of the dataset.

A part is the unit of work and of resuming: one file of tokens, with its indexes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.exports.export_options import Side
from fineshards.exports.stream import Read, Stream

# Tokens whose masks are in memory at a time.
_MASKED = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens `[start, stop)` of a stream, exported as one file of tokens.

    split: name of the stream. index: position among its `count` parts. skip: 1 if the token at
    `start` is left out, because it is an EOT and each document ends with one. append: 1 if an EOT
    is added after the last token, which ends the last document.
    """

    split: str
    index: int
    count: int
    start: int
    stop: int
    skip: int = 0
    append: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens in the file."""
        return self.stop - self.start - self.skip + self.append


def plan_by_documents(stream: Stream, tokens_per_file: int | None, side: Side) -> list[Part]:
    """Parts that end where a document ends; a document of any length is in one part.

    Each has `tokens_per_file` tokens or more; the last one takes the rest, so that no file is much
    shorter than the others.
    """
    cuts = [0]
    while tokens_per_file is not None:
        cut = stream.document_at_or_after(cuts[-1] + tokens_per_file)
        if stream.tokens - cut < tokens_per_file:
            break
        cuts.append(cut)
    return _between(stream, [*cuts, stream.tokens], side, moved=int(side == "end"))


def plan_by_tokens(stream: Stream, tokens_per_file: int | None, side: Side) -> list[Part]:
    """Parts of exactly `tokens_per_file` tokens; the last one takes the rest."""
    length = exported_tokens(stream, side)
    size = tokens_per_file or max(length, 1)
    return _cut(stream, size, max(length // size, 1), side)


def plan_by_rows(
    stream: Stream, sequence_length: int, rows_per_file: int, side: Side
) -> list[Part]:
    """Parts of `rows_per_file` rows of `sequence_length` tokens; the last one may be shorter.

    The last part also has the tokens that are too few for a row.
    """
    rows = exported_tokens(stream, side) // sequence_length
    return _cut(stream, rows_per_file * sequence_length, max(-(-rows // rows_per_file), 1), side)


def exported_tokens(stream: Stream, side: Side) -> int:
    """The number of tokens that an export of a stream has."""
    skip, append = _ends(stream, side)
    return stream.tokens - skip + append


def _cut(stream: Stream, size: int, count: int, side: Side) -> list[Part]:
    """A number of parts of `size` tokens; the last one takes the rest."""
    skip, _ = _ends(stream, side)
    cuts = [0, *(index * size + skip for index in range(1, count)), stream.tokens]
    return _between(stream, cuts, side, moved=0)


def _between(stream: Stream, cuts: list[int], side: Side, moved: int) -> list[Part]:
    """The parts between cuts. moved: 1 if the EOT behind each cut goes to the part before it."""
    skip, append = _ends(stream, side)
    count = len(cuts) - 1
    skips, appends = [skip, *[moved] * (count - 1)], [*[moved] * (count - 1), append]
    parts = (
        Part(stream.split, index, count, start, stop, skips[index], appends[index])
        for index, (start, stop) in enumerate(pairwise(cuts))
    )
    return [part for part in parts if part.tokens]


def _ends(stream: Stream, side: Side) -> tuple[int, int]:
    """How many tokens to leave out at a stream's beginning, and to add at its end."""
    if side == "begin":
        return 0, 0
    return int(stream.begins_whole), int(stream.ends_whole)


class PartReader:
    """The tokens and documents of a part, as its format asks for them.

    dtype: of the tokens that are given out. reads: what has been read of each shard.
    """

    def __init__(
        self, stream: Stream, part: Part, side: Side, dtype: np.dtype[np.unsignedinteger]
    ) -> None:
        self.stream, self.part, self.side, self.dtype = stream, part, side, dtype
        self.reads: list[Read] = []

    def chunks(self) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """The tokens of the part, a megabyte at a time, in `dtype`."""
        part = self.part
        for chunk in self.stream.read(part.start + part.skip, part.stop, self.reads):
            yield chunk.astype(self.dtype, copy=False)
        if part.append:
            yield np.array([self.stream.eot], self.dtype)

    def learned(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Whether each of the tokens `[start, stop)` of the part is learned. An EOT never is."""
        first = self.part.start + self.part.skip
        learned = self.stream.learned(first + start, min(first + stop, self.part.stop))
        return np.append(learned, np.zeros(stop - start - len(learned), np.bool_))

    def masks(self, dtype: npt.DTypeLike = np.bool_) -> Iterator[npt.NDArray[Any]]:
        """Whether each token of the part is learned, 1 or 0 of a type, a million at a time."""
        for start in range(0, self.part.tokens, _MASKED):
            stop = min(start + _MASKED, self.part.tokens)
            yield self.learned(start, stop).astype(dtype, copy=False)

    def pieces(self, lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """All tokens of the part in arrays of these lengths."""
        chunks, left = self.chunks(), np.zeros(0, self.dtype)
        for length in lengths.tolist():
            read, count = [left], len(left)
            while count < length:
                read.append(next(chunks))
                count += len(read[-1])
            joined = np.concatenate(read) if len(read) > 1 else left
            yield joined[:length]
            left = joined[length:]
        # What was read is recorded when more is asked for, with `python -O` too.
        rest = [*left, *chunks]
        assert not rest

    def ends(self) -> npt.NDArray[np.int64]:
        """Where each document ends, in tokens of the part: int64, shape (documents,).

        Each document has at least one token.
        """
        documents = self.stream.documents(self.part.start, self.part.stop)
        return self._ends(np.concatenate([begins for begins, _, _ in documents]))

    def documents(self) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Where each document ends, as `ends`, and its source: the columns file, row and id."""
        begins, sources = [], []
        for of_shard, table, rows in self.stream.documents(self.part.start, self.part.stop):
            begins.append(of_shard)
            sources.append(table.sources(rows).cast(_SOURCE))
        ends = self._ends(np.concatenate(begins))
        return ends, pa.concat_tables(sources).slice(0, len(ends))

    def _ends(self, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        part, later = self.part, int(self.side == "end")
        ends: npt.NDArray[np.int64] = (
            np.append(begins[1:], part.stop) + later - part.start - part.skip
        )
        ends = np.minimum(ends, part.tokens)
        # Where a split cuts a document just behind its EOT, that EOT ends the document before.
        if len(ends) > 1 and ends[-1] == ends[-2]:
            ends = ends[:-1]
        return ends


_SOURCE = pa.schema([("file", pa.string()), ("row", pa.int64()), ("id", pa.string())])
