"""What a dataset holds already when a job adds to it, and what of it may grow.

Only the last shard of each stream grows, where it is not full: a longer one with the same beginning
replaces it, and so does its document table. So the files of an earlier generation may be longer
than its manifest says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fineshards.errors import OutputError
from fineshards.shards import npy
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.counts import Sums
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.job.source_counts import sums_by_stream
from fineshards.shards.layout import ShardKey, SplitRule, files_of
from fineshards.shards.masks import begins_as, mask_content
from fineshards.shards.tables.documents import (
    DocumentTable,
    join_documents,
    learned_ranges,
    table_schema,
)
from fineshards.storage.base import READ_AHEAD, FileRange, Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c, file_checksum


@dataclass(frozen=True, slots=True)
class EarlierGeneration:
    """What a dataset holds already. Made once, at launch, and asked by all that an append does.

    generation: its number; 0 of a new dataset, which holds nothing. sums: of each stream. growing:
    the last shards of the streams, where they are not full.
    """

    generation: int = 0
    sums: tuple[Sums, ...] = ()
    growing: tuple[ShardRecord, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> EarlierGeneration:
        """What a generation of a dataset holds."""
        size = manifest.layout.shard_tokens
        return cls(
            manifest.generation,
            sums_by_stream(manifest.reports, manifest.settings.split),
            tuple(shard for shard in manifest.shards if shard.tokens < size),
        )

    def __bool__(self) -> bool:
        return self.generation > 0

    def manifest(self, storage: Storage) -> Manifest:
        """The rest of what it holds, which is too large to be sent to each worker."""
        return Manifest.load_finished(storage, self.generation)

    def shorter(self, key: ShardKey) -> ShardRecord | None:
        """The shard that a longer one replaces, if any."""
        found = (each for each in self.growing if ShardKey(each.split, each.index) == key)
        return next(found, None)

    def restore(
        self, checkpoints: Checkpoints, paths: Sequence[str], check: Callable[[], object]
    ) -> None:
        """Makes the shards that may grow, and their tables, what they were.

        paths: of the source files, by index. check: called before each file is replaced; what it
        raises ends the work. Raises OutputError if they are damaged.
        """
        storage = checkpoints.storage
        for record in self.growing:
            name, table, mask = files_of(record.name)
            if all(storage.size(each) == size for each, size, _ in record.files()):
                continue
            head = ShardHead.read(record, checkpoints, paths)
            if storage.size(name) != record.bytes:
                check()
                header = npy.header(record.tokens, checkpoints.dtype)
                storage.assemble(name, header, head.parts, head.version)
            if storage.size(table) != record.table_bytes:
                check()
                storage.write(table, head.table_content, over=head.table_version)
            if record.mask_bytes is not None and storage.size(mask) != record.mask_bytes:
                check()
                storage.write(mask, head.mask, over=head.mask_version)


NO_EARLIER = EarlierGeneration()


@dataclass(frozen=True, slots=True)
class ShardHead:
    """What a shard begins with: the content of the shorter one that it replaces, or nothing.

    tokens: how many. parts: where they are. version, table_version, mask_version: of the files,
    which the longer ones replace. They may be the longer ones already, if an earlier attempt has
    come that far. table: its documents. table_content: their file.
    """

    tokens: int = 0
    parts: tuple[FileRange, ...] = ()
    version: str | None = None
    table_version: str | None = None
    table: pa.Table | None = None
    table_content: bytes = b""
    mask_version: str | None = None

    @property
    def mask(self) -> bytes:
        """The content of the shorter one's loss mask."""
        assert self.table is not None
        ranges = learned_ranges(self.table)
        assert ranges is not None
        return mask_content(ranges, self.tokens)

    @classmethod
    def read(
        cls, record: ShardRecord | None, checkpoints: Checkpoints, paths: Sequence[str]
    ) -> ShardHead:
        """Reads a shard and its table; raises OutputError if they are not those of its record."""
        if record is None:
            return cls()
        storage, (name, table, mask) = checkpoints.storage, files_of(record.name)
        version, table_version = storage.version(name), storage.version(table)
        mask_version = storage.version(mask)
        if not has_tokens(storage, record, checkpoints.dtype):
            raise damaged(storage, name)
        content = table_head(storage.read(table), record, paths, checkpoints.rule)
        if content is None:
            raise damaged(storage, table)
        try:
            documents = DocumentTable.parse(content, table_schema(checkpoints.rule))
            join_documents((), paths, checkpoints.rule, documents)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise damaged(storage, table) from error
        parts = (_tokens_of(record, checkpoints.dtype),)
        return cls(record.tokens, parts, version, table_version, documents, content, mask_version)


def _tokens_of(record: ShardRecord, dtype: np.dtype[np.unsignedinteger]) -> FileRange:
    return FileRange(record.name, npy.HEADER_BYTES, npy.file_bytes(record.tokens, dtype))


def has_tokens(storage: Storage, record: ShardRecord, dtype: np.dtype[np.unsignedinteger]) -> bool:
    """Whether the file of a shard, which may be longer, begins with the tokens of its record."""
    part = _tokens_of(record, dtype)
    checksum = crc32c(npy.header(record.tokens, dtype))
    with storage.open(part.name, READ_AHEAD) as opened:
        opened.seek(part.start)
        found = file_checksum(opened, checksum, part.stop - part.start)
    return checksum_to_base64(found) == record.crc32c


def table_head(
    content: bytes, record: ShardRecord, paths: Sequence[str], rule: SplitRule
) -> bytes | None:
    """The content of a shard's document table, from that of a longer shard that begins with it.

    Also from its own content. None if it is not what the record says.
    """
    if len(content) == record.table_bytes:
        return content if checksum_to_base64(crc32c(content)) == record.table_crc32c else None
    try:
        rows = DocumentTable.parse(content, table_schema(rule)).slice(0, record.pieces)
        head = DocumentTable.to_bytes(join_documents((), paths, rule, rows))
    except (pa.ArrowException, OSError, ValueError):
        return None
    return head if checksum_to_base64(crc32c(head)) == record.table_crc32c else None


def has_mask(content: bytes, table: bytes, tokens: int) -> bool:
    """Whether a mask, which may be longer, begins as a shard's document table says."""
    ranges = learned_ranges(DocumentTable.parse(table))
    return ranges is not None and begins_as(content, ranges, tokens)


def damaged(storage: Storage, name: str) -> OutputError:
    """The error for a file that an append would build on, and that is missing or has changed."""
    return OutputError(
        f"{storage.path(name)} is not what the manifest says, so nothing is added to the dataset. "
        "See what fineshards verify says, and run fineshards repair."
    )
