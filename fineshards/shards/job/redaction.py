"""Redaction: documents whose tokens are overwritten by EOT, in place.

Nothing moves: a shard keeps its length, so offsets, sample numbers and loader states stay valid.
Document tables mark the documents, and the job record of the generation lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from fineshards.errors import OutputError
from fineshards.shards.record import Count, Record, sha256_of
from fineshards.storage.base import shortened

if TYPE_CHECKING:
    from fineshards.shards.job.records import ShardRecord, SourceFile
    from fineshards.shards.layout import Layout
    from fineshards.shards.tables.documents import DocumentPiece

# Tokens in memory at once: as many as are best written at once.
_CHUNK_TOKENS = 1 << 18


class Redaction(Record, frozen=True):
    """The documents that a generation redacted.

    documents: (position of the file in the input, row) of each, ascending. ranges: their tokens,
    as (split, begin, end) within the split.
    """

    documents: tuple[tuple[Count, Count], ...]
    ranges: tuple[tuple[str, Count, Count], ...]

    @classmethod
    def of(
        cls,
        pieces: Sequence[tuple[ShardRecord, DocumentPiece]],
        sources: Iterable[SourceFile],
        layout: Layout,
    ) -> Redaction:
        """The redaction of documents, from all their pieces in order. sources: of the dataset."""
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
        return sha256_of(self.documents)


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
