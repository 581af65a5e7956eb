"""Redaction: documents whose tokens are overwritten by EOT, in place.

Nothing moves: a shard keeps its length, so offsets, sample numbers and loader states stay valid.
Document tables mark the documents, and the job record of the generation lists them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fineshards.errors import OutputError
from fineshards.shards.job.records import as_number, as_text
from fineshards.storage.names import shortened

if TYPE_CHECKING:
    from fineshards.shards.job.records import ShardRecord, SourceFile
    from fineshards.shards.layout import Layout
    from fineshards.shards.tables.documents import DocumentPiece

# Tokens in memory at once: as many as are best written at once.
_CHUNK_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class Redaction:
    """The documents that a generation redacted.

    documents: (position of the file in the input, row) of each, ascending. ranges: their tokens,
    as (split, begin, end) within the split.
    """

    documents: tuple[tuple[int, int], ...]
    ranges: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(
        cls,
        pieces: Sequence[tuple[ShardRecord, DocumentPiece]],
        sources: Iterable[SourceFile],
        layout: Layout,
    ) -> Redaction:
        """The redaction of documents, from all their pieces in order.

        sources: the files of the dataset.
        """
        files = {file.name: file.index for file in sources}
        unknown = {piece.file for _, piece in pieces} - files.keys()
        if unknown:
            raise OutputError(
                f"the tables of documents name the file {shortened(min(unknown))}, which is not a "
                "file of the manifest. Someone has changed the dataset. Copy it again."
            )
        return cls(
            tuple(sorted({(files[piece.file], piece.row) for _, piece in pieces})),
            tuple(sorted(ranges_of(pieces, layout))),
        )

    def sha256(self) -> str:
        """SHA-256, as hex, of the list of documents."""
        return redaction_sha256(self.documents)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Redaction:
        """The inverse of `asdict`; raises one of JSON_ERRORS for other content."""
        return cls(
            tuple((as_number(file), as_number(row)) for file, row in fields["documents"]),
            tuple(
                (as_text(split), as_number(begin), as_number(end))
                for split, begin, end in fields["ranges"]
            ),
        )


def redaction_sha256(documents: Iterable[tuple[int, int]]) -> str:
    """SHA-256, as hex, of a list of documents, as Redaction has them."""
    content = json.dumps([list(document) for document in documents], separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def ranges_of(
    pieces: Iterable[tuple[ShardRecord, DocumentPiece]], layout: Layout
) -> list[tuple[str, int, int]]:
    """The tokens of documents as (split, begin, end) within the split, from all their pieces.

    One range per document, however many shards it is in, unless the first shards are the test
    split: then a document may be in both.
    """
    found: dict[tuple[int, str], tuple[str, int, int]] = {}
    for shard, piece in pieces:
        at = layout.begin(shard.key) + piece.offset
        document = (piece.document, shard.split)
        _, begin, _ = found.get(document, ("", at, at))
        found[document] = shard.split, begin, at + piece.length
    return list(found.values())


def overwritten(
    source: BinaryIO,
    ranges: Sequence[tuple[int, int]],
    eot: int,
    dtype: np.dtype[np.unsignedinteger],
) -> Iterator[bytes]:
    """The bytes of a shard's tokens with some of them overwritten, some at a time.

    source: a shard after its header. ranges: ascending `[begin, end)` in tokens.
    """
    position = 0
    while content := source.read(_CHUNK_TOKENS * dtype.itemsize):
        tokens = np.frombuffer(content, dtype).copy()
        for begin, end in ranges:
            tokens[max(begin - position, 0) : max(end - position, 0)] = eot
        yield tokens.tobytes()
        position += len(tokens)


def masked(
    ranges: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], length: int
) -> npt.NDArray[np.bool_]:
    """Which tokens of windows are in none of some ranges: shape (len(begins), length).

    ranges: `[begin, end)`, shape (n, 2), ascending and apart. begins: the first token of each
    window.
    """
    outside = np.ones((len(begins), length), np.bool_)
    lows = np.searchsorted(ranges[:, 1], begins, side="right")
    highs = np.searchsorted(ranges[:, 0], begins + length)
    for row in np.flatnonzero(lows < highs).tolist():
        for begin, end in (ranges[lows[row] : highs[row]] - begins[row]).tolist():
            outside[row, max(begin, 0) : end] = False
    return outside
