"""Records that pass between the steps, and what a dataset that grows was at each step.

Each has plain values: cheap to pickle (a shuffled element has about a hundred bytes), and
comparable.

    metadata/job.json                          the job record of the first generation
    metadata/blocks.parquet                    its blocks (`tables/block_counts.py`)
    metadata/manifest.json                     the manifest of the latest
    metadata/generations/0001.json             the manifest of the first
    metadata/generations/0002.job.json         the job record of the second
    metadata/generations/0002.blocks.parquet   its blocks, if it added files
    metadata/generations/0002.json             its manifest, that of the latest while it is that

A generation is numbered from 1. Files of one are never changed by the next, but for the manifest;
a redaction overwrites documents in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Annotated

from msgspec import Meta, json
from msgspec.structs import replace

from fineshards.errors import clipped
from fineshards.shards.layout import REJECTED_FOLDER, SHARD_NAME, SPLITS, ShardKey, files_of
from fineshards.shards.record import Count, Crc32c, Record, Sha256
from fineshards.storage.base import Storage

GENERATIONS_FOLDER = "metadata/generations"
# Names in a manifest are opened, so none may lead out of the folder.
Split = Annotated[str, Meta(pattern=f"^({'|'.join(SPLITS)})$")]
ShardName = Annotated[str, Meta(pattern=SHARD_NAME)]
MetadataName = Annotated[str, Meta(pattern=r"^metadata/([a-z]+/)?[a-z0-9][a-z0-9_.-]*$")]


# What follows it in an identity is the size and the identity of the file's index.
INDEX = "; index "


def describe_state(size: int | str, identity: str) -> str:
    """A file's size and identity for an error message, with times of local files as times."""
    identity, _, index = identity.partition(INDEX)
    if index:
        of, _, its = index.partition(" ")
        return f"{describe_state(size, identity)}, and an index of {describe_state(of, its)}"
    kind, _, value = identity.partition(":")
    if kind == "mtime" and value.isdecimal() and len(value) <= 20:  # no year beyond 9999
        seconds, rest = divmod(int(value), 10**9)
        then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        return f"{size} bytes and the time {then:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    return f"{size} bytes and {clipped(identity)}"


class SourceFile(Record, frozen=True):
    """A source file, as it was when the job was launched.

    Args:
        index: Position in the order of the input, from 0.
        name: Its path below the root, as records and document tables have it.
        size: Size in bytes.
        identity: Version of the content: `mtime:<nanoseconds>`, of URLs `mtime:<time>` in the
            words of the store, `generation:<number>`, `etag:<text>`, or `size:<bytes>` where a
            store tells nothing else. Where the file is read by an index beside it,
            `; index <bytes> <identity>` follows.
        format: `parquet`, `jsonl`, `csv`, `tsv`, `arrow`, `warc`, `wet` or `text`.
        compression: `none`, `gzip`, `zstd`, `xz` or `bzip2`; always `none` for parquet and arrow,
            which compress inside.
        extraction: What makes text of the HTML of a WARC file: the extractor, and libraries with
            versions; of CSV, `--quoting`; of text, `--text_separator`; of a plug-in, its version.
        stop_row: With `--limit`, the row that the file ends before; None for all rows.
        trusted: Another version than `identity`, with which a resumed job went on by
            `--trust_input`.
        test: Whether its documents are the test split, in a dataset of test files.
        root: What its path begins with, before the name: that of its generation's input. Not part
            of the record.
    """

    index: Count
    name: str
    size: Count
    identity: str
    format: str
    compression: str
    extraction: str | None = None
    stop_row: Count | None = None
    trusted: str | None = None
    test: bool = False
    root: str = ""

    @property
    def path(self) -> str:
        """Where it is read: an absolute local path, or a URL, of `hf://` with its commit."""
        return self.root + self.name

    @property
    def version(self) -> str:
        """The version of the content that is read."""
        return self.trusted or self.identity

    @property
    def sizes(self) -> tuple[int, str]:
        """Its size, and that of its index, which no other version may change."""
        return self.size, self.version.partition(INDEX)[2].partition(" ")[0]

    def described(self) -> str:
        """Its size and version for an error message."""
        return describe_state(self.size, self.version)

    def recorded(self) -> SourceFile:
        """The file as records have it, wherever it is."""
        return replace(self, root="") if self.root else self


class Block(Record, frozen=True):
    """Consecutive row groups of a parquet file, or one whole file of another format.

    A block is the unit of work, and of resuming an interrupted job.

    file: index of the source file. index: position among the file's `blocks` blocks.
    first_group, stop_group: half-open range of row groups; (0, 0) for a whole file.
    first_row: number of the block's first row within the file.
    bytes: estimated size of the text, for progress; it decides no byte.
    """

    file: Count
    index: Count
    blocks: Count
    first_group: Count
    stop_group: Count
    first_row: Count
    bytes: Count

    @property
    def place(self) -> TokenBlock:
        """The token block that is made of this block."""
        return TokenBlock("blocks", self.file, self.index)


@dataclass(frozen=True, slots=True, order=True)
class TokenBlock:
    """Names a token block in the checkpoints.

    folder: `blocks` for those of blocks; with a shuffle also `buckets`. file: index of the source
    file, or the number of the bucket. index: the block's position in the file.
    """

    folder: str
    file: int
    index: int

    @property
    def key(self) -> str:
        """Its key in the ledger."""
        return f"{self.file:05d}-{self.index:05d}"


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


class ShardRecord(Record, frozen=True):
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
    """

    name: ShardName
    split: Split
    index: Count
    tokens: Count
    bytes: Count
    crc32c: Crc32c
    pieces: Count
    documents: Count
    first_document: Count
    table_bytes: Count
    table_crc32c: Crc32c
    unredacted_crc32c: Crc32c | None = None
    mask_bytes: Count | None = None
    mask_crc32c: Crc32c | None = None
    learned: Count | None = None

    @property
    def key(self) -> ShardKey:
        """Which shard it is."""
        return ShardKey(self.split, self.index)

    def files(self) -> list[tuple[str, int, str]]:
        """The name, size and checksum of the shard, its document table, and its mask, if any."""
        sizes = (self.bytes, self.table_bytes, self.mask_bytes)
        checksums = (self.crc32c, self.table_crc32c, self.mask_crc32c)
        return [
            (name, size, checksum)
            for name, size, checksum in zip(files_of(self.name), sizes, checksums, strict=True)
            if size is not None and checksum is not None
        ]


def content_fingerprint(shards: Iterable[ShardRecord], eot: int, redactions: bool = True) -> str:
    """SHA-256, as hex, of the names, sizes and checksums of shards in their order, and of the EOT.

    Of shards of conversations also the checksums of their loss masks. All else is either in the
    shards (their number of tokens and dtype are in their headers) or decides none of their bytes.
    Document tables are not part of it: they name the source files.

    redactions: False for the checksums that the shards had before documents were redacted, which
    moves nothing, without masks. So loaders tell a split from another one, and not from itself.
    """
    digest = hashlib.sha256(b"eot %d\n" % eot)
    for shard in shards:
        before = None if redactions else shard.unredacted_crc32c
        mask = f" {shard.mask_crc32c}" if redactions and shard.mask_crc32c else ""
        digest.update(f"{shard.name} {shard.bytes} {before or shard.crc32c}{mask}\n".encode())
    return digest.hexdigest()


class Leaks(Record, frozen=True):
    """Exact duplicates between the splits. A document is in the split that it begins in.

    Args:
        test_documents: Documents of test whose text is also that of a document of train.
        train_documents: Documents of train whose text is also that of a document of test.
    """

    test_documents: Count
    train_documents: Count


class MetadataFile(Record, frozen=True):
    """A file in `metadata/` other than the document tables and the manifest.

    Args:
        name: Path below the output folder.
        bytes: Size of the file in bytes.
        crc32c: CRC-32C of the file, as Cloud Storage writes it: base64 of big-endian bytes.
    """

    name: MetadataName
    bytes: Count
    crc32c: Crc32c


def write_metadata(storage: Storage, name: str, content: bytes) -> MetadataFile:
    """Writes a file in `metadata/`; returns its record."""
    from fineshards.storage.checksums import checksum_to_base64  # loading lacks it

    return MetadataFile(name, len(content), checksum_to_base64(storage.write(name, content)))


class LeftOut(Record, frozen=True):
    """A file of the input that cannot be read, and that `--max_bad_files` leaves out.

    Args:
        file: The file. Its index is its position in the whole input of its generation.
        reason: Why it cannot be read, as the error that it would be says.
    """

    file: SourceFile
    reason: str


class Generation(Record, frozen=True):
    """What one generation did to a dataset.

    Args:
        files: Number of source files that it added, at the end of the list.
        redacted: Number of documents whose tokens it overwrote.
        redaction_sha256: SHA-256, as hex, of the list of those documents; None if there are none.
        root: Where the files are: what their paths begin with, before their names. A folder with
            its last slash; empty if they have none in common.
        max_bad_files: The limit of `--max_bad_files`, by which every file of the input was read
            before the job began; 0 if it was not given.
        left_out: The files that were left out then, in the order of the input.
    """

    files: Count
    redacted: Count = 0
    redaction_sha256: Sha256 | None = None
    root: str = ""
    max_bad_files: Count | str = 0
    left_out: tuple[LeftOut, ...] = ()


def copy_name(generation: int) -> str:
    """The copy of a generation's manifest, which stays when there is a later one."""
    return f"{GENERATIONS_FOLDER}/{generation:04d}.json"


def lists_of_files(generations: Sequence[Generation]) -> dict[str, bytes]:
    """The lists of the files that generations left out, by name: a line per file."""
    return {
        f"{REJECTED_FOLDER}/files-{number:04d}.jsonl": b"".join(
            json.encode({"file": of.file.name, "bytes": of.file.size, "reason": of.reason}) + b"\n"
            for of in generation.left_out
        )
        for number, generation in enumerate(generations, 1)
        if generation.left_out
    }


def blocks_name(generation: int) -> str:
    """The file of the counts of the blocks that a generation read, if it added files."""
    prefix = "metadata/" if generation == 1 else f"{GENERATIONS_FOLDER}/{generation:04d}."
    return f"{prefix}blocks.parquet"


def block_tables(generations: Sequence[Generation]) -> dict[int, str]:
    """The files of the counts of blocks that a dataset has, by the numbers of generations."""
    return {number: blocks_name(number) for number, of in enumerate(generations, 1) if of.files}


def borders(generations: Sequence[Generation]) -> tuple[int, ...]:
    """How many source files each generation has, with those of the ones before."""
    return tuple(accumulate(generation.files for generation in generations))


def checked(generations: Sequence[Generation], files: Sequence[SourceFile]) -> None:
    """Raises ValueError unless generations add up to the files of a record, which are in order."""
    if not generations or borders(generations)[-1] != len(files):
        raise ValueError("its generations do not add up to its files")
    if any(file.index != position for position, file in enumerate(files)):
        raise ValueError("its files are not in their order")


def below_roots(
    generations: Sequence[Generation], files: Sequence[SourceFile]
) -> tuple[SourceFile, ...]:
    """The files of a record, each below the root of its generation."""
    roots = (generation.root for generation in generations for _ in range(generation.files))
    return tuple(replace(file, root=root) for file, root in zip(files, roots, strict=True))
