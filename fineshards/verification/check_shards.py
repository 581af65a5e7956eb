"""Checks of the shards and their document tables, as part of verify."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import google_crc32c
import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError
from fineshards.shards import npy
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.job.redaction import redaction_sha256
from fineshards.shards.layout import ONE_STREAM, SplitRule, mask_name, table_name
from fineshards.shards.masks import count_learned, mask_content
from fineshards.shards.shuffle_order import DocumentOrder
from fineshards.shards.split_hash import hash_files, hash_keys
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable
from fineshards.storage.base import READ_AHEAD
from fineshards.storage.checksums import crc32c, file_checksum
from fineshards.verification.check_decisions import DroppedRows
from fineshards.verification.check_metadata import content_problems
from fineshards.wording import counted

# Tokens in memory at once, per shard.
_READ_TOKENS = 1 << 20


@dataclass(slots=True)
class ShardFindings:
    """What a shard and its document table hold, as read from them.

    documents: begun in the shard. by_file: tokens and documents begun, by source path. first,
    last: pieces of documents; None if the table cannot be read. redacted: the documents whose
    tokens a generation overwrote, as (file, row), by generation.
    """

    problems: list[str] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    by_file: dict[str, tuple[int, int]] = field(default_factory=dict)
    first: DocumentPiece | None = None
    last: DocumentPiece | None = None
    redacted: dict[int, set[tuple[int, int]]] = field(default_factory=dict)


def check_shard(
    dataset: Dataset,
    shard: ShardRecord,
    files: set[str],
    file_numbers: dict[str, int],
    now: ShardRecord | None,
    dropped: DroppedRows | None,
) -> ShardFindings:
    """Reads a shard and its table, each once.

    files: the names of the files that are there. file_numbers: the position of each source path in
    the input. now: the record of the shard in the latest generation, where it may have redacted
    documents. dropped: the rows that the dataset's recipe dropped, if it has one.
    """
    contents, table, now = ShardFindings(), None, now or shard
    if table_name(shard.name) in files:
        try:
            table = _read_table(dataset, shard, contents, now)
            if table is not None:
                numbers = table.file_numbers(file_numbers)
                _check_table(dataset.manifest, shard, table, contents, numbers)
                rule = dataset.manifest.settings.split
                contents.problems += _check_sides(shard, table, rule, numbers)
                if dropped is not None:
                    contents.problems += dropped.among(shard, table, numbers)
        except FineshardsError as error:
            contents.problems.append(str(error))
    if mask_name(shard.name) in files and shard.mask_bytes is not None:
        contents.problems += _check_mask(dataset, shard, table, now)
    if shard.name in files:
        try:
            _check_tokens(dataset, shard, table, contents, now)
        except FineshardsError as error:
            contents.problems.append(str(error))
    return contents


def _read_table(
    dataset: Dataset, shard: ShardRecord, contents: ShardFindings, now: ShardRecord
) -> DocumentTable | None:
    """A shard's table; None if it has another size or checksum than the manifest says."""
    name = table_name(shard.name)
    content = dataset.storage.read(name)
    found = list(
        content_problems(name, len(content), crc32c(content), now.table_bytes, now.table_crc32c)
    )
    if found:
        # What a damaged table says is not worth reading.
        contents.problems += found
        return None
    return dataset.parse_table(shard, content)


def _check_table(
    manifest: Manifest,
    shard: ShardRecord,
    table: DocumentTable,
    contents: ShardFindings,
    files: npt.NDArray[np.int64],
) -> None:
    """The table covers the shard without gaps or overlaps, in the order of the documents."""
    name, problems = table_name(shard.name), contents.problems
    if len(table) != shard.pieces:
        problems.append(
            f"{name} has {counted(len(table), 'row')}; the manifest says {shard.pieces}"
        )
    if len(table) == 0:
        return
    ends = table.offset + table.length
    covers = table.offset[0] == 0 and ends[-1] == shard.tokens
    if not covers or np.any(table.offset[1:] != ends[:-1]) or np.any(table.length < 1):
        problems.append(f"{name} does not cover tokens 0 to {shard.tokens} exactly")
    if np.any(np.diff(table.document) != 1):
        problems.append(f"{name}: its document numbers are not consecutive")
    if np.any(table.start[1:] != 0) or table.start[0] < 0:
        problems.append(f"{name}: 'start' is negative, or not 0 after the first row")
    first = table.document[0] - manifest.first_number(shard.split)
    if first != shard.first_document:
        problems.append(
            f"{name} begins with document {first}; the manifest says {shard.first_document}"
        )
    order = DocumentOrder.of(manifest)
    if not order.follows(files, table.row):
        problems.append(f"{name}: its documents are not in the order of {order}")
    contents.by_file = table.sums_by_file()
    marked = np.flatnonzero(table.redacted)
    for file, index in zip(files[marked].tolist(), marked.tolist(), strict=True):
        by_generation = contents.redacted.setdefault(int(table.redacted[index]), set())
        by_generation.add((file, int(table.row[index])))
    contents.first, contents.last = table.piece(0), table.piece(len(table) - 1)


def _check_mask(
    dataset: Dataset, shard: ShardRecord, table: DocumentTable | None, now: ShardRecord
) -> Iterator[str]:
    """The loss mask is that of the manifest, and follows from the document table."""
    name = mask_name(shard.name)
    content = dataset.storage.read(name)
    size, checksum = now.mask_bytes or 0, now.mask_crc32c or ""
    yield from content_problems(name, len(content), crc32c(content), size, checksum)
    if table is None:
        return
    ranges = table.ranges()
    if ranges is None or content != mask_content(ranges, shard.tokens):
        yield f"{name} does not have the bits that follow from {table_name(shard.name)}"
    elif not np.any(table.redacted > dataset.manifest.generation):
        learned = count_learned(ranges)
        if learned != shard.learned:
            yield f"{shard.name} has {learned:,} learned tokens; the manifest says {shard.learned}"


def _check_sides(
    shard: ShardRecord, table: DocumentTable, rule: SplitRule, files: npt.NDArray[np.int64]
) -> Iterator[str]:
    """Every document of a table is on its side; a hash that follows from the table is right."""
    hashes = table.split_hash
    if hashes is None:
        return
    wrong = rule.in_test(hashes) != (shard.split == "test")
    if wrong.any():
        other = "train" if shard.split == "test" else "test"
        yield f"{_where(shard, table, wrong)} belong to {other} by split_hash"
    if rule.key in ("row", "id") or rule.test_files is not None:
        if rule.test_files is not None:
            expected = hash_files(files, rule.test_files)
        else:
            expected = hash_keys(table.ids if rule.key == "id" else None, files, table.row)
        wrong = hashes != expected
        if wrong.any():
            yield f"{_where(shard, table, wrong)} have a split_hash that is not that of {rule.key}"


def _where(shard: ShardRecord, table: DocumentTable, wrong: npt.NDArray[np.bool_]) -> str:
    count = counted(int(wrong.sum()), "document")
    first = table.document[np.argmax(wrong)]
    return f"{table_name(shard.name)}: {count}, the first of them number {first},"


def _check_tokens(
    dataset: Dataset,
    shard: ShardRecord,
    table: DocumentTable | None,
    contents: ShardFindings,
    now: ShardRecord,
) -> None:
    """Size, header, checksum and ids are right; an EOT is where a document begins, nowhere else."""
    tokenizer = dataset.manifest.settings.tokenizer
    dtype = dataset.manifest.settings.token_dtype
    problems = contents.problems
    bad_ids: list[str] = []
    eot_parts = [np.empty(0, np.int64)]
    position = 0
    with dataset.storage.open(shard.name, READ_AHEAD) as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        header = opened.read(npy.HEADER_BYTES)
        try:
            tokens = npy.parse_header(header, dtype)
        except ValueError as error:
            problems.append(f"{shard.name} {error}")
            return
        complete = size == npy.file_bytes(tokens, dtype)
        checksum: int = google_crc32c.value(header)
        left = size - npy.HEADER_BYTES
        while content := opened.read(min(_READ_TOKENS * dtype.itemsize, left)):
            left -= len(content)
            checksum = google_crc32c.extend(checksum, content)
            if not complete:
                continue
            chunk = np.frombuffer(content, dtype)
            highest = int(chunk.max())
            if highest >= tokenizer.size:
                where = position + int(chunk.argmax())
                bad_ids.append(
                    f"{shard.name}, token {where}: id {highest} is outside the vocabulary of "
                    f"{tokenizer.size} ids"
                )
            eot_parts.append(np.flatnonzero(chunk == tokenizer.eot) + position)
            position += len(chunk)
    # Of tokens that a later generation overwrote, the latest manifest has the checksum.
    later = table is not None and bool(np.any(table.redacted > dataset.manifest.generation))
    if later:
        with dataset.storage.open(shard.name, READ_AHEAD) as opened:
            checksum = file_checksum(opened)
            size = opened.tell()
        problems += content_problems(shard.name, size, checksum, now.bytes, now.crc32c)
    else:
        problems += content_problems(shard.name, size, checksum, shard.bytes, shard.crc32c)
    if tokens != shard.tokens:
        problems.append(
            f"{shard.name}: its header says {counted(tokens, 'token')}; the manifest says "
            f"{shard.tokens:,}"
        )
    if not complete:
        return
    problems += bad_ids
    eots = np.concatenate(eot_parts)
    begins, overwritten = eots, np.empty(0, np.int64)
    if table is not None:
        begins, overwritten = table.offset[table.start == 0], _overwritten(table)
    documents = len(eots) - len(overwritten)
    contents.tokens, contents.documents = tokens, documents
    redacts = any(generation.redacted for generation in dataset.manifest.generations)
    # Without the table nothing says which EOT tokens have overwritten others.
    if documents != shard.documents and (table is not None or not redacts):
        problems.append(
            f"{shard.name} has {counted(documents, 'EOT token')}; the manifest says "
            f"{counted(shard.documents, 'document')}"
        )
    if not np.array_equal(eots, np.sort(np.concatenate([begins, overwritten]))):
        problems.append(f"{shard.name}: its EOT tokens are not where its documents begin")


def _overwritten(table: DocumentTable) -> npt.NDArray[np.int64]:
    """The offsets of all tokens of redacted documents but the EOT that each began with."""
    marked = np.flatnonzero(table.redacted)
    firsts = table.offset[marked] + (table.start[marked] == 0)
    ends = table.offset[marked] + table.length[marked]
    ranges = [np.arange(first, end) for first, end in zip(firsts, ends, strict=True)]
    return np.concatenate([np.empty(0, np.int64), *ranges])


def check_borders(
    manifest: Manifest, found: list[ShardFindings], file_numbers: dict[str, int]
) -> Iterator[str]:
    """Each shard continues where the previous one ended, in the stream and in the sources."""
    order = DocumentOrder.of(manifest)
    previous: DocumentPiece | None = None
    split = None
    for number, (shard, contents) in enumerate(zip(manifest.shards, found, strict=True)):
        first = contents.first
        # Where the split is by document, each split is a stream of its own.
        new_stream = manifest.settings.split.by_document and shard.split != split
        split = shard.split
        if first is None or (previous is None and number > 0):
            # This shard's table, or that of the one before, cannot be read.
            previous = contents.last
            continue
        name, place = table_name(shard.name), (first.document, first.start)
        if previous is None:
            if place != (0, 0):
                yield (
                    f"{name} begins at token {first.start} of document {first.document}, but it is "
                    "the first of the dataset"
                )
        else:
            reached = previous.start + previous.length
            continues = not new_stream and place == (previous.document, reached)
            if not continues and place != (previous.document + 1, 0):
                yield (
                    f"{name} begins at token {first.start} of document {first.document}, but the "
                    f"previous shard ended at token {reached} of document {previous.document}"
                )
            elif not new_stream and not _continues(order, previous, first, file_numbers):
                yield (
                    f"{name} begins with row {first.row} of {first.file}, but the previous shard "
                    f"ended in row {previous.row} of {previous.file}"
                )
        previous = contents.last


def _continues(
    order: DocumentOrder,
    previous: DocumentPiece,
    first: DocumentPiece,
    file_numbers: dict[str, int],
) -> bool:
    """Whether a shard's first piece is of the same row as the previous piece, or of a later one."""
    was, now = ((file_numbers.get(piece.file, -1), piece.row) for piece in (previous, first))
    if first.start == 0:
        files, rows = np.array([was, now]).T
        return order.follows(files, rows)
    return (now, first.id, first.split_hash, first.text_hash) == (
        was,
        previous.id,
        previous.split_hash,
        previous.text_hash,
    )


def check_totals(manifest: Manifest, found: list[ShardFindings]) -> Iterator[str]:
    """The tables add up to the manifest's counts, per file and stream; if all can be read."""
    if any(contents.first is None for contents in found):
        return
    rule = manifest.settings.split
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for shard, contents in zip(manifest.shards, found, strict=True):
        stream = shard.split if rule.by_document else ONE_STREAM
        for path, (tokens_here, documents_here) in contents.by_file.items():
            entry = sums[path, stream]
            entry[0] += tokens_here
            entry[1] += documents_here
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        for stream, expected in zip(rule.streams, report.streams(), strict=True):
            tokens, documents = sums.pop((file.name, stream), (0, 0))
            if (tokens, documents) != (expected.tokens, expected.documents):
                tables = "document tables" if stream == ONE_STREAM else f"{stream} tables"
                yield (
                    f"{file.path}: the {tables} hold {counted(tokens, 'token')} in "
                    f"{counted(documents, 'document')}; the manifest says {expected.tokens:,} in "
                    f"{expected.documents:,}"
                )
    for path in sorted({path for path, _ in sums}):
        yield f"the document tables name {path}, which is not in the manifest"


def check_redactions(manifest: Manifest, found: list[ShardFindings]) -> Iterator[str]:
    """The tables mark as many documents, and exactly those, that each generation redacted."""
    if any(contents.first is None for contents in found):
        return
    marked: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for contents in found:
        for number, documents in contents.redacted.items():
            marked[number] |= documents
    for number, generation in enumerate(manifest.generations, 1):
        listed = sorted(marked[number])
        digest = redaction_sha256(listed) if listed else None
        if (len(listed), digest) != (generation.redacted, generation.redaction_sha256):
            yield (
                f"the document tables mark {counted(len(listed), 'document')} as redacted by "
                f"generation {number}; the manifest says {generation.redacted:,}, or others"
            )
