"""Shards and their document tables: in order, and in the sums of the manifest; as part of verify.

Tables can be read side by side. Of each a few numbers are left, which are added up: the sums are a
table of what is counted, what was found, and what the manifest says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fineshards.errors import FineshardsError
from fineshards.shards import npy
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import ShardRecord
from fineshards.shards.layout import SplitRule, files_of, table_name
from fineshards.shards.masks import count_learned, mask_content
from fineshards.shards.record import sha256_of
from fineshards.shards.shuffle_order import DocumentOrder
from fineshards.shards.split_hash import hash_files, hash_keys
from fineshards.shards.tables.documents import DocumentPiece, DocumentTable
from fineshards.verification.check_decisions import DroppedRows
from fineshards.verification.check_files import differences, file_problem
from fineshards.wording import counted

# What is before the first document.
_NOTHING = DocumentPiece(document=-1, offset=0, length=0, start=0, file="", row=-1, id=None)


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


class _Tokens:
    """What is to be known of a shard's tokens, taken from its content piece by piece.

    eots: the places of all EOT. highest: the highest id, and its place.
    """

    def __init__(self, dtype: np.dtype[np.unsignedinteger], eot: int) -> None:
        self.dtype, self._eot = dtype, eot
        self.header, self.count = b"", 0
        self.eots = [np.empty(0, np.int64)]
        self.highest = (-1, 0)

    def add(self, content: bytes) -> None:
        """Takes the next bytes of the file."""
        begin = 0 if self.header else npy.HEADER_BYTES
        self.header = self.header or content[:begin]
        # A file that was cut may end within a token.
        count = max(len(content) - begin, 0) // self.dtype.itemsize
        tokens = np.frombuffer(content, self.dtype, count, min(begin, len(content)))
        if count:
            self.eots.append(np.flatnonzero(tokens == self._eot) + self.count)
            at = int(tokens.argmax())
            self.highest = max(self.highest, (int(tokens[at]), self.count + at))
        self.count += count


def check_shard(
    dataset: Dataset,
    shard: ShardRecord,
    there: set[str],
    numbers: dict[str, int],
    dropped: DroppedRows | None,
) -> ShardFindings:
    """Reads the files of a shard, each once. What is in a damaged one is not looked at.

    shard: its record in the latest generation, where it may have redacted documents. there: the
    names of the files that are there. numbers: the position of each source path in the input.
    dropped: the rows that the dataset's recipe dropped, if it has one.
    """
    settings, found = dataset.manifest.settings, ShardFindings()
    tokens = _Tokens(settings.token_dtype, settings.tokenizer.eot)
    _, table_file, mask_file = files_of(shard.name)
    contents: dict[str, list[bytes]] = {table_file: [], mask_file: []}
    whole = set[str]()
    for name, size, checksum in shard.files():
        if name in there:
            see = tokens.add if name == shard.name else contents[name].append
            if problem := file_problem(dataset.storage, name, size, checksum, see):
                found.problems.append(problem)
            else:
                whole.add(name)
    table = None
    if table_file in whole:
        try:
            table = dataset.parse_table(shard, b"".join(contents[table_file]))
        except FineshardsError as error:
            found.problems.append(str(error))
    if table is not None:
        begun = int(np.sum(table.start == 0))
        found.problems += differences(
            {"rows": len(table), "documents that begin": begun},
            {"rows": shard.pieces, "documents that begin": shard.documents},
            where=table_file,
        )
    if table:
        files = table.file_numbers(numbers)
        found.problems += _table_problems(dataset.manifest, shard, table, files)
        found.problems += _wrong_sides(shard, table, settings.split, files)
        if dropped is not None:
            found.problems += dropped.among(shard, table, files)
        if mask_file in whole:
            found.problems += _mask_problems(shard, table, b"".join(contents[mask_file]))
        found.by_file = table.sums_by_file()
        for index in np.flatnonzero(table.redacted).tolist():
            of_generation = found.redacted.setdefault(int(table.redacted[index]), set())
            of_generation.add((int(files[index]), int(table.row[index])))
        found.first, found.last = table.piece(0), table.piece(-1)
    if shard.name in whole:
        found.problems += _token_problems(shard, tokens, settings.tokenizer.size, table)
        eots = sum(map(len, tokens.eots))
        found.tokens, found.documents = tokens.count, eots - len(_overwritten(table))
    return found


def _table_problems(
    manifest: Manifest, shard: ShardRecord, table: DocumentTable, files: npt.NDArray[np.int64]
) -> Iterator[str]:
    """The table covers the shard without gaps or overlaps, in the order of the documents."""
    ends, order = table.offset + table.length, DocumentOrder.of(manifest)
    begins = np.concatenate([[0], ends[:-1]])
    covers = np.array_equal(table.offset, begins) and ends[-1] == shard.tokens
    first = int(table.document[0]) - manifest.first_number(shard.split)
    checks = {
        f" does not cover tokens 0 to {shard.tokens} exactly": covers and np.all(table.length > 0),
        ": its document numbers are not consecutive": np.all(np.diff(table.document) == 1),
        ": 'start' is negative, or not 0 after the first row": (
            np.all(table.start[1:] == 0) and table.start[0] >= 0
        ),
        f" begins with document {first}; the manifest says {shard.first_document}": (
            first == shard.first_document
        ),
        f": its documents are not in the order of {order}": order.follows(files, table.row),
    }
    yield from (f"{table_name(shard.name)}{what}" for what, holds in checks.items() if not holds)


def _mask_problems(shard: ShardRecord, table: DocumentTable, content: bytes) -> Iterator[str]:
    """The loss mask follows from the document table."""
    name, table_file = files_of(shard.name)[2], table_name(shard.name)
    ranges = table.ranges()
    if ranges is None or content != mask_content(ranges, shard.tokens):
        yield f"{name} does not have the bits that follow from {table_file}"
    else:
        sums = {"learned tokens": count_learned(ranges)}
        yield from differences(sums, {"learned tokens": shard.learned or 0}, shard.name)


def _wrong_sides(
    shard: ShardRecord, table: DocumentTable, rule: SplitRule, files: npt.NDArray[np.int64]
) -> Iterator[str]:
    """Every document of a table is on its side; a hash that follows from the table is right."""
    hashes = table.split_hash
    if hashes is None:
        return
    other = "train" if shard.split == "test" else "test"
    wrong = {f"belong to {other} by split_hash": rule.in_test(hashes) != (shard.split == "test")}
    if rule.key in ("row", "id") or rule.test_files is not None:
        ids = table.ids if rule.key == "id" else None
        expected = (
            hash_keys(ids, files, table.row)
            if rule.test_files is None
            else hash_files(files, rule.test_files)
        )
        wrong[f"have a split_hash that is not that of {rule.key}"] = hashes != expected
    for problem, rows in wrong.items():
        if rows.any():
            count, first = counted(int(rows.sum()), "document"), table.document[np.argmax(rows)]
            yield f"{table_name(shard.name)}: {count}, the first of them number {first}, {problem}"


def _token_problems(
    shard: ShardRecord, tokens: _Tokens, vocabulary: int, table: DocumentTable | None
) -> Iterator[str]:
    """Header and ids are right; an EOT is where a document begins, nowhere else."""
    try:
        count = npy.parse_header(tokens.header, tokens.dtype)
        what = "tokens in its header"
        yield from differences({what: count}, {what: shard.tokens}, shard.name)
    except ValueError as error:
        yield f"{shard.name} {error}"
    highest, place = tokens.highest
    if highest >= vocabulary:
        yield (
            f"{shard.name}, token {place}: id {highest} is outside the vocabulary of {vocabulary} "
            "ids"
        )
    if table:
        expected = np.concatenate([table.offset[table.start == 0], _overwritten(table)])
        if not np.array_equal(np.concatenate(tokens.eots), np.sort(expected)):
            yield f"{shard.name}: its EOT tokens are not where its documents begin"


def _overwritten(table: DocumentTable | None) -> npt.NDArray[np.int64]:
    """The offsets of all tokens of redacted documents but the EOT that each began with."""
    if table is None:
        return np.empty(0, np.int64)
    marked = np.flatnonzero(table.redacted)
    firsts = table.offset[marked] + (table.start[marked] == 0)
    ends = table.offset[marked] + table.length[marked]
    ranges = [np.arange(first, end) for first, end in zip(firsts, ends, strict=True)]
    return np.concatenate([np.empty(0, np.int64), *ranges])


def check_stream(
    manifest: Manifest, found: Sequence[ShardFindings], numbers: dict[str, int]
) -> Iterator[str]:
    """The tables of all shards continue each other and add up, if all can be read."""
    if any(contents.first is None for contents in found):
        return
    yield from _borders(manifest, found, numbers)
    rule = manifest.settings.split
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for shard, contents in zip(manifest.shards, found, strict=True):
        where = f"{shard.split} tables" if rule.by_document else "document tables"
        for path, (tokens, documents) in contents.by_file.items():
            sums[path][f"tokens in the {where}"] += tokens
            sums[path][f"documents in the {where}"] += documents
    for file, report in zip(manifest.files, manifest.reports, strict=True):
        expected = {}
        for stream, its in zip(rule.streams, report.streams(), strict=True):
            where = f"{stream} tables" if rule.by_document else "document tables"
            expected[f"tokens in the {where}"] = its.tokens
            expected[f"documents in the {where}"] = its.documents
        yield from differences(sums.pop(file.name, {}), expected, file.path)
    for path in sorted(sums):
        yield f"the document tables name {path}, which is not in the manifest"
    redacted: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for contents in found:
        for number, rows in contents.redacted.items():
            redacted[number] |= rows
    for number, generation in enumerate(manifest.generations, 1):
        listed = sorted(redacted[number])
        digest = sha256_of(listed) if listed else None
        if (len(listed), digest) != (generation.redacted, generation.redaction_sha256):
            yield (
                f"the document tables mark {counted(len(listed), 'document')} as redacted by "
                f"generation {number}; the manifest says {generation.redacted:,}, or others"
            )


def _borders(
    manifest: Manifest, found: Sequence[ShardFindings], numbers: dict[str, int]
) -> Iterator[str]:
    """Each shard continues where the previous one ended, in the stream and in the sources."""
    order, rule = DocumentOrder.of(manifest), manifest.settings.split
    previous, split = _NOTHING, ""
    for shard, contents in zip(manifest.shards, found, strict=True):
        first = contents.first
        assert first is not None
        # Where the split is by document, each split is a stream of its own.
        is_new = previous is _NOTHING or (rule.by_document and shard.split != split)
        end = previous.start + previous.length
        if first.start and not is_new:
            holds = _identity(first, first.start) == _identity(previous, end)
        else:
            rows = np.array([previous.row, first.row])
            files = np.array([numbers.get(piece.file, -1) for piece in (previous, first)])
            holds = (first.document, first.start) == (previous.document + 1, 0)
            holds = holds and (is_new or order.follows(files, rows))
        if not holds:
            before = (
                "it is the first of the dataset"
                if previous is _NOTHING
                else f"the previous shard ended at token {end} of document {previous.document}, "
                f"row {previous.row} of {previous.file}"
            )
            yield (
                f"{table_name(shard.name)} begins with token {first.start} of document "
                f"{first.document}, row {first.row} of {first.file}, but {before}"
            )
        previous, split = contents.last or first, shard.split


def _identity(piece: DocumentPiece, start: int) -> tuple[object, ...]:
    """What a document's pieces have in common, and the token that a piece begins with."""
    hashes = piece.split_hash, piece.text_hash
    return piece.document, piece.file, piece.row, piece.id, hashes, start
