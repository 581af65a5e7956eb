"""Small records that pass between the steps: source files, blocks, pieces, finished shards.

Each is a frozen dataclass of plain values: cheap to pickle (a shuffled element has about a hundred
bytes), comparable, and easy to convert to JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from fineshards.errors import clipped
from fineshards.shards.layout import Layout, ShardKey, files_of

_Record = TypeVar("_Record")

# Numbers are counts, sizes and positions. Larger ones would overflow in numpy.
_LIMIT = 1 << 63
_PLAIN = {"int", "str", "bool", "None"}

# What reading JSON of unknown content may raise; RecursionError where it is nested too deep.
JSON_ERRORS = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


def from_fields(kind: type[_Record], content: Mapping[str, Any], **more: Any) -> _Record:
    """A dataclass from the fields of a JSON object and from `more`; ignores other fields.

    Raises KeyError for a missing field, TypeError for a value of another type than the field's,
    and ValueError for a number below 0 or beyond 63 bits, so that bad content fails here and not
    later in a sum.
    """
    values = {}
    for name, allowed in _types(kind).items():  # type: ignore[arg-type]
        if name not in more:
            value = values[name] = content[name]
            found = "None" if value is None else type(value).__name__
            if allowed and found not in allowed:
                raise TypeError(f"{name} is a {found}, expected {' or '.join(allowed)}")
            if found == "int" and not 0 <= value < _LIMIT:
                raise ValueError(f"{name} is a number out of range")
    return kind(**values, **more)


def to_fields(record: Any) -> dict[str, Any]:
    """A dataclass of plain values as a JSON object; several times as fast as `asdict`."""
    return {name: getattr(record, name) for name in _types(type(record))}  # type: ignore[arg-type]


@cache
def _types(kind: type) -> dict[str, tuple[str, ...]]:
    """The types that each field of a dataclass may have; none for a field of another kind."""
    types = {field.name: tuple(str(field.type).split(" | ")) for field in fields(kind)}
    return {name: found if set(found) <= _PLAIN else () for name, found in types.items()}


def describe_state(size: int, identity: str) -> str:
    """A file's size and identity for an error message, with times of local files as times."""
    kind, _, value = identity.partition(":")
    if kind == "mtime" and value.isdecimal() and len(value) <= 20:  # no year beyond 9999
        seconds, rest = divmod(int(value), 10**9)
        then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        return f"{size} bytes and the time {then:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    return f"{size} bytes and {clipped(identity)}"


def as_text(value: object) -> str:
    """A value that must be text; raises TypeError for any other."""
    if not isinstance(value, str):
        raise TypeError(f"found a {type(value).__name__}, expected text")
    return value


def as_number(value: object) -> int:
    """A value that must be a count or a position; raises TypeError or ValueError for any other."""
    if type(value) is not int:
        raise TypeError(f"found a {type(value).__name__}, expected a whole number")
    if not 0 <= value < _LIMIT:
        raise ValueError("a number is out of range")
    return value


def layout_from_json(fields: Mapping[str, Any]) -> Layout:
    """A layout; raises one of JSON_ERRORS for content that is none."""
    added = tuple((as_number(test), as_number(train)) for test, train in fields["added"])
    return from_fields(Layout, fields, added=added)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file, as it was when the job was launched.

    Args:
        index: Position in the order of the input, from 0.
        path: Where it is read: an absolute local path, or a URL, of `hf://` with its commit. The
            root of its generation's input, and `name`. Not part of the record.
        size: Size in bytes.
        identity: Version of the content: `mtime:<nanoseconds>`, of URLs `mtime:<time>` in the
            words of the store, `generation:<number>`, `etag:<text>`, or `size:<bytes>` where a
            store tells nothing else.
        format: `parquet`, `jsonl`, `csv`, `tsv`, `arrow`, `warc`, `wet` or `text`.
        compression: `none`, `gzip`, `zstd`, `xz` or `bzip2`; always `none` for parquet and arrow,
            which compress inside.
        extraction: What makes text of the HTML of a WARC file: the name of the extractor, and its
            libraries with their versions. None for other formats.
        stop_row: With `--limit`, the row that the file ends before; None for all rows.
        name: Its path below the root, as records and document tables have it.
        trusted: Another version than `identity`, with which a resumed job went on by
            `--trust_input`.
        signed: The URL by which it is read, if its path lacks a signature. Not part of the record.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> (file,) = Manifest.load(open_storage(dataset_folder)).files
        >>> file.index, file.format, file.compression
        (0, 'parquet', 'none')
    """

    index: int
    path: str
    size: int
    identity: str
    format: str
    compression: str
    extraction: str | None = None
    stop_row: int | None = None
    name: str = ""
    trusted: str | None = None
    signed: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.path)

    @property
    def version(self) -> str:
        """The version of the content that is read."""
        return self.trusted or self.identity

    def described(self) -> str:
        """Its size and version for an error message."""
        return describe_state(self.size, self.version)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object, without the path, how it is signed and what is None."""
        left_out = ("path", "signed")
        found = to_fields(self).items()
        return {name: each for name, each in found if each is not None and name not in left_out}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], root: str = "") -> SourceFile:
        """The inverse of `to_json`, of a file below a root; raises as `from_fields` does."""
        found = {"extraction": None, "stop_row": None, "trusted": None, **content}
        return from_fields(cls, found, path=root + as_text(content["name"]), signed="")


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive row groups of a parquet file, or one whole file of another format.

    A block is the unit of work, and of resuming an interrupted job.

    file: index of the source file. index: position among the file's `blocks` blocks.
    first_group, stop_group: half-open range of row groups; (0, 0) for a whole file.
    first_row: number of the block's first row within the file.
    bytes: estimated size of the text, for progress; it decides no byte.
    """

    file: int
    index: int
    blocks: int
    first_group: int
    stop_group: int
    first_row: int
    bytes: int

    @property
    def place(self) -> TokenBlock:
        """The token block that is made of this block."""
        return TokenBlock("blocks", self.file, self.index)


@dataclass(frozen=True, slots=True, order=True)
class TokenBlock:
    """Names a token block in the checkpoints.

    folder: `blocks` for those of blocks; with a shuffle also `merged` and `buckets`. file: index of
    the source file, or the number of the merged runs or of the bucket. index: the block's position
    in the file.
    """

    folder: str
    file: int
    index: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be encoded; place and reason are phrases for an error message.

    unextracted: what is wrong with a page whose text cannot be extracted, in a word, by which such
    pages are counted; None for any other row.
    """

    row: int
    place: str
    reason: str
    unextracted: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A reference to tokens `[start, stop)` of a token block, which go to offset `at` of a shard.

    stream: which part of the block; see SplitRule.streams. first_document: number in the stream of
    the part's first document.
    """

    block: TokenBlock
    stream: str
    start: int
    stop: int
    at: int
    first_document: int


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard.

    Args:
        name: Path below the output folder.
        split: `test` or `train`.
        index: Index within the split, from 0.
        tokens: Tokens in the shard.
        bytes: Size of the file in bytes.
        crc32c: CRC-32C of the whole file, as Cloud Storage writes it: base64 of big-endian bytes.
        pieces: Rows of the document table, one per document with tokens in the shard.
        documents: Documents that begin in the shard; equals its number of EOT tokens.
        first_document: Number of the document of the first token. Documents are numbered from 0 in
            each stream: in each split, or in both together with a number of test shards.
        table_bytes: Size of the document table in bytes.
        table_crc32c: CRC-32C of the document table.
        unredacted_crc32c: CRC-32C that the file would have without redactions, by which loaders
            know that nothing has moved; None if no document in it was redacted.
        mask_bytes: Size of the loss mask in bytes; None unless documents are conversations, as the
            next two.
        mask_crc32c: CRC-32C of the loss mask.
        learned: Tokens in the shard that are learned.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> last = Manifest.load(open_storage(dataset_folder)).shards[-1]
        >>> last.name, last.tokens, last.bytes
        ('train/train_0005.npy', 65971, 264012)
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
    table_bytes: int
    table_crc32c: str
    unredacted_crc32c: str | None = None
    mask_bytes: int | None = None
    mask_crc32c: str | None = None
    learned: int | None = None

    @property
    def key(self) -> ShardKey:
        """Which shard it is."""
        return ShardKey(self.split, self.index)

    def files(self) -> list[tuple[str, int, str]]:
        """The name, size and checksum of each of its files.

        Returns:
            The shard, its document table, and its loss mask, if it has one.
        """
        sizes = (self.bytes, self.table_bytes, self.mask_bytes)
        checksums = (self.crc32c, self.table_crc32c, self.mask_crc32c)
        return [
            (name, size, checksum)
            for name, size, checksum in zip(files_of(self.name), sizes, checksums, strict=True)
            if size is not None and checksum is not None
        ]


# What a shard's record has only in some datasets, and is None elsewhere.
RARE = ("unredacted_crc32c", "mask_bytes", "mask_crc32c", "learned")


@dataclass(frozen=True, slots=True)
class Leaks:
    """Exact duplicates between the splits. A document is in the split that it begins in.

    Args:
        test_documents: Documents of test whose text is also that of a document of train.
        train_documents: Documents of train whose text is also that of a document of test.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> Manifest.load(open_storage(dataset_folder)).leaks
        Leaks(test_documents=0, train_documents=0)
    """

    test_documents: int
    train_documents: int


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A file in `metadata/` other than the document tables and the manifest.

    Args:
        name: Path below the output folder.
        bytes: Size of the file in bytes.
        crc32c: CRC-32C of the file, as Cloud Storage writes it: base64 of big-endian bytes.

    Example:
        >>> from fineshards.shards.job.manifest import Manifest
        >>> from fineshards.storage.open import open_storage
        >>> [file.name for file in Manifest.load(open_storage(dataset_folder)).metadata]
        ['metadata/job.json', 'metadata/vocabulary.tiktoken']
    """

    name: str
    bytes: int
    crc32c: str
