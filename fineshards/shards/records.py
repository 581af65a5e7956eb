"""The small facts that travel between the steps: files, blocks, slices, and what became of them.

Each is a frozen dataclass of plain values, so that it is cheap to pickle (a shuffled element is
about a hundred bytes), comparable in tests, and easy to turn into JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

_Record = TypeVar("_Record")


def from_fields(kind: type[_Record], content: Mapping[str, Any], **more: Any) -> _Record:
    """A dataclass from JSON's fields and `more`; ignores others, as a manifest's entry has some.

    Raises KeyError for a missing field, and TypeError where an int or a str is something else:
    what was read must not fail later, in the middle of a sum.
    """
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in more:
            value = values[field.name] = content[field.name]
            if field.type in ("int", "str") and type(value).__name__ != field.type:
                raise TypeError(f"{field.name} is {value!r}, expected {field.type}")
    return kind(**values, **more)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file, as it was when the job was launched.

    index: position in the global order of the input, from 0.
    path: absolute local path, `gs://` address, or an `hf://` address with its commit.
    size: bytes.
    identity: what changes when the content does: `mtime:<nanoseconds>`, `generation:<number>` or
    `etag:<hash>`.
    format: `parquet` or `jsonl`.
    compression: `none`, `gzip` or `zstd`; parquet compresses inside, so it says `none`.
    """

    index: int
    path: str
    size: int
    identity: str
    format: str
    compression: str


@dataclass(frozen=True, slots=True)
class Block:
    """A run of consecutive row groups of a parquet file, or one whole file of another format.

    The unit of work and of resumption.

    file: index of the source file; index: position among the file's `blocks` blocks.
    first_group, stop_group: half-open range of row groups; (0, 0) for a whole file.
    first_row: number of the block's first row within the file.
    bytes: size of the text as far as known without reading it; tells progress, decides no byte.
    """

    file: int
    index: int
    blocks: int
    first_group: int
    stop_group: int
    first_row: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be encoded: where it stands and why, in words that complete a sentence."""

    row: int
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A reference to tokens `[start, stop)` of a token block, to stand at `at` in a shard.

    first_document: number in the whole stream of the block's first document.
    """

    file: int
    block: int
    start: int
    stop: int
    at: int
    first_document: int


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One finished shard.

    name: path below the output folder. bytes: size of the file. crc32c: base64 of the big-endian
    CRC-32C of the whole file, as Cloud Storage prints it.
    pieces: rows of its document table, one for each document with tokens in the shard.
    documents: documents that begin in the shard; equals the number of EOT tokens in it.
    first_document: number in the stream of the document that the first token belongs to.
    """

    name: str
    split: str
    index: int
    tokens: int
    bytes: int
    crc32c: str
    pieces: int
    documents: int
    first_document: int
