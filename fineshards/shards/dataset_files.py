"""A finished dataset, open for reading: tokens by range and documents by number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.job.job import ranges_of
from fineshards.shards.job.manifest import Manifest, readable_manifest
from fineshards.shards.job.records import ShardRecord, block_tables, copy_name, lists_of_files
from fineshards.shards.layout import SPLITS, table_name
from fineshards.shards.tables.block_counts import Rows, read_blocks
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable, table_schema
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c

# Shards are read in chunks, and the last few are cached: documents read in order lie close
# together, and each request to object storage takes time.
_CHUNK_BYTES = 4 << 20
# Documents of one source are all over a shuffled dataset.
_SHUFFLED_CHUNK_BYTES = 64 << 10
_FIX = "Run fineshards verify for all that is damaged, and fineshards repair to fix it."


@dataclass(frozen=True, slots=True)
class Document:
    """A document with all its tokens.

    number: index in the dataset. shard, offset: position of its first token. file, row: its source.
    id: its id in the source, or None. tokens: uint32, shape (n,), EOT first. split_hash: of its
    split key; None where the split is not by document. redacted: whether its table says so.
    """

    number: int
    shard: ShardRecord
    offset: int
    file: str
    row: int
    id: str | None
    tokens: npt.NDArray[np.uint32]
    split_hash: int | None
    redacted: bool


class Dataset:
    """Reads a dataset's shards and document tables; caches the last few of each."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self.storage = storage
        self.manifest = manifest
        self._documents = manifest.totals["documents"]
        self._firsts = {split: manifest.first_number(split) for split in SPLITS}
        self._first_documents = [
            self._firsts[shard.split] + shard.first_document for shard in manifest.shards
        ]
        self._chunk_bytes = _SHUFFLED_CHUNK_BYTES if manifest.settings.shuffle else _CHUNK_BYTES
        self._schema = table_schema(manifest.settings.split)
        self.table = lru_cache(maxsize=4)(self._read_table)
        self._chunk = lru_cache(maxsize=2)(self._read_chunk)

    @classmethod
    def open(cls, storage: Storage, generation: int | None = None) -> Dataset:
        """Opens a generation of a dataset, the latest by default; raises as `readable_manifest`."""
        return cls(storage, readable_manifest(storage, generation))

    def tokens(self, shard: ShardRecord, start: int, stop: int) -> npt.NDArray[np.uint32]:
        """Tokens `[start, stop)` of a shard; raises OutputError if the file is too short."""
        dtype = self.manifest.settings.token_dtype
        begin, end = start * dtype.itemsize, stop * dtype.itemsize
        size = self._chunk_bytes
        first = begin // size
        chunks = [self._chunk(shard.name, at) for at in range(first, -(-end // size))]
        content = b"".join(chunks)[begin - first * size : end - first * size]
        if len(content) != end - begin:
            raise OutputError(
                f"{self.storage.path(shard.name)} ends before token {stop}, expected "
                f"{shard.tokens} tokens. {_FIX}"
            )
        return np.frombuffer(content, dtype).astype(np.uint32, copy=False)

    def document(self, number: int) -> Document:
        """Document `number`, joined across shards; raises IndexError if there is none."""
        pieces = list(self._pieces(number))
        parts = [
            self.tokens(shard, piece.offset, piece.offset + piece.length) for shard, piece in pieces
        ]
        shard, first = pieces[0]
        return Document(
            number=number,
            shard=shard,
            offset=first.offset,
            file=first.file,
            row=first.row,
            id=first.id,
            tokens=np.concatenate(parts),
            split_hash=first.split_hash,
            redacted=first.redacted > 0,
        )

    def ranges(self, number: int) -> list[tuple[str, int, int]]:
        """The tokens of document `number`, as (split, begin, end) within the split.

        One range, unless the first shards are the test split: then a document may be in both.
        Raises IndexError if there is no such document.
        """
        return ranges_of(self._pieces(number), self.manifest.layout)

    def _pieces(self, number: int) -> Iterator[tuple[ShardRecord, DocumentPiece]]:
        """The pieces of document `number`, in order; raises IndexError if it does not exist."""
        if not 0 <= number < self._documents:
            raise IndexError(
                f"there is no document {number:,}: there are {self._documents:,}, numbered from 0"
            )
        # The first piece is in the last shard that begins with an earlier document, or in the
        # shard that begins with this document's first token.
        position = bisect_right(self._first_documents, number) - 1
        while position > 0 and self._piece(position, number).start > 0:
            position -= 1
        piece = self._piece(position, number)
        while True:
            yield self.manifest.shards[position], piece
            position += 1
            if position == len(self._first_documents) or self._first_documents[position] != number:
                break
            piece = self._piece(position, number)
            if piece.start == 0:
                break

    def _piece(self, position: int, number: int) -> DocumentPiece:
        table = self.table(position)
        return table.piece(table.index_of_document(number))

    def _read_chunk(self, name: str, number: int) -> bytes:
        with self.storage.open(name) as opened:
            opened.seek(npy.HEADER_BYTES + number * self._chunk_bytes)
            return opened.read(self._chunk_bytes)

    def root_of(self, file: str) -> str:
        """Where a source file is that a document table names: what its path begins with."""
        path = self._paths.get(file, file)
        return path.removesuffix(file)

    @cached_property
    def _paths(self) -> dict[str, str]:
        return {file.name: file.path for file in self.manifest.files}

    @cached_property
    def blocks(self) -> Rows:
        """How many documents and tokens each block of the input gave (`block_counts.py`)."""
        return read_blocks(self.storage, block_tables(self.manifest.generations).values())

    def columns(self, position: int, names: list[str]) -> pa.Table:
        """Columns of the document table of a shard; only they are read, and not cached."""
        shard = self.manifest.shards[position]
        name = table_name(shard.name)
        with self._explained(name), self.storage.open(name) as opened:
            return DocumentTable.read_columns(opened, self._schema, names)

    def parse_table(self, shard: ShardRecord, content: bytes) -> DocumentTable:
        """A table, numbered in the dataset, from a file's content; raises OutputError for other."""
        with self._explained(table_name(shard.name)):
            first = self._firsts[shard.split]
            return DocumentTable.read(BytesIO(content), self._schema, first)

    def _read_table(self, position: int) -> DocumentTable:
        """The document table of the shard at a position in the manifest."""
        shard = self.manifest.shards[position]
        # The whole table, some megabytes, in one request.
        return self.parse_table(shard, self.storage.read(table_name(shard.name)))

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turns what is raised for a damaged table into OutputError."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            raise OutputError(
                f"{self.storage.path(name)} cannot be read as a document table: {error}. {_FIX}"
            ) from error


def expected_files(manifest: Manifest) -> Iterator[tuple[str, int, str]]:
    """The name, size and checksum of each file of a dataset but the manifest."""
    for shard in manifest.shards:
        yield from shard.files()
    for file in manifest.metadata:
        yield file.name, file.bytes, file.crc32c
    content = manifest.to_bytes()
    yield copy_name(manifest.generation), len(content), checksum_to_base64(crc32c(content))


def files_of_manifest(manifest: Manifest) -> dict[str, bytes]:
    """The files that follow from the manifest alone: its copy, and lists of files left out."""
    copy = {copy_name(manifest.generation): manifest.to_bytes()}
    return copy | lists_of_files(manifest.generations)
