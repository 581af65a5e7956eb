"""A finished dataset, opened for reading: tokens by range, documents by number, and back."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.documents import DocumentPiece, DocumentTable
from fineshards.shards.layout import table_name
from fineshards.shards.manifest import Manifest
from fineshards.shards.records import ShardRecord
from fineshards.storage.base import Storage

# Shards are read in chunks, of which the last ones are kept: who goes through documents in order
# asks for many that lie close together, and on object storage each request takes its time.
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A document with all its tokens.

    number: in the stream. shard, offset: where its first token stands. id: the source's, or None.
    tokens: uint32, shape (n,), EOT first.
    """

    number: int
    shard: ShardRecord
    offset: int
    file: str
    row: int
    id: str | None
    tokens: npt.NDArray[np.uint32]


class Dataset:
    """Reads a dataset's shards and document tables. Keeps the last few tables in memory."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self.storage = storage
        self.manifest = manifest
        self._documents = manifest.totals()["documents"]
        self._firsts = [shard.first_document for shard in manifest.shards]
        self.table = lru_cache(maxsize=4)(self._read_table)
        self._chunk = lru_cache(maxsize=2)(self._read_chunk)

    @classmethod
    def open(cls, storage: Storage) -> Dataset:
        """Opens a dataset by its manifest; raises OutputError if it is not finished."""
        manifest = Manifest.load(storage)
        if manifest is None:
            raise OutputError(
                f"{storage.root} holds no finished dataset: metadata/manifest.json is missing. "
                "See fineshards status, or run the build again to finish it."
            )
        return cls(storage, manifest)

    def tokens(self, shard: ShardRecord, start: int, stop: int) -> npt.NDArray[np.uint32]:
        """Tokens `[start, stop)` of a shard; raises OutputError if the file ends too early."""
        dtype = self.manifest.settings.token_dtype
        begin, end = start * dtype.itemsize, stop * dtype.itemsize
        first = begin // _CHUNK_BYTES
        chunks = [self._chunk(shard.name, at) for at in range(first, -(-end // _CHUNK_BYTES))]
        content = b"".join(chunks)[begin - first * _CHUNK_BYTES : end - first * _CHUNK_BYTES]
        if len(content) != end - begin:
            raise OutputError(
                f"{self.storage.path(shard.name)} ends before token {stop}; it should hold "
                f"{shard.tokens}. Build the dataset again with --overwrite."
            )
        return np.frombuffer(content, dtype).astype(np.uint32, copy=False)

    def document(self, number: int) -> Document:
        """Document `number` of the stream, put together across shards.

        Raises IndexError if there is no such document.
        """
        if not 0 <= number < self._documents:
            raise IndexError(number)
        # A document's first piece is in the last shard that begins with an earlier document, or
        # in the first of those that begin with it and hold its first token.
        position = bisect_right(self._firsts, number) - 1
        while position > 0 and self._piece(position, number).start > 0:
            position -= 1
        first = self._piece(position, number)
        shard, parts, piece = self.manifest.shards[position], [], first
        while True:
            here = self.manifest.shards[position]
            parts.append(self.tokens(here, piece.offset, piece.offset + piece.length))
            position += 1
            if position == len(self._firsts) or self._firsts[position] != number:
                break
            piece = self._piece(position, number)
            if piece.start == 0:
                break
        return Document(
            number, shard, first.offset, first.file, first.row, first.id, np.concatenate(parts)
        )

    def _piece(self, position: int, number: int) -> DocumentPiece:
        table = self.table(position)
        return table.piece(table.index_of_document(number))

    def _read_chunk(self, name: str, number: int) -> bytes:
        with self.storage.open(name) as opened:
            opened.seek(npy.HEADER_BYTES + number * _CHUNK_BYTES)
            return opened.read(_CHUNK_BYTES)

    def _read_table(self, position: int) -> DocumentTable:
        """The document table of the shard at a position in the manifest."""
        name = table_name(self.manifest.shards[position].name)
        try:
            # All of it is wanted, some megabytes, and that is one request where requests cost.
            return DocumentTable.read(BytesIO(self.storage.read(name)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise OutputError(
                f"{self.storage.path(name)} cannot be read as a document table: {error}. "
                "Build the dataset again with --overwrite."
            ) from error
